"""Search for the layout, and the mesh, with which a training step needs the least memory.

Mesh TensorFlow's auto_mtf proposes layouts. It sees the tensors between operations, not what is
inside kernels (attention weights, for instance), and nothing but memory. Proposals are therefore
checked as a config would be, compared by the dry run's estimate, and freed of rules that save
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

import tensorflow as tf

from configs.errors import ConfigError
from configs.load import parse_config
from configs.names import DIMENSION_NAMES
from configs.schema import Config
from inspection.measure import declared_graph
from inspection.prediction import Need, one_of_each, predict_need, with_layers
from models.dimensions import WHOLE_IN_GENERATION, Dimensions
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import load_auto_mtf, mtf

SAME = 1.01  # needs within 1 % count as equal: the estimate is no better

Axes = tuple[tuple[str, int], ...]
"""(name, processors) of each mesh axis."""


class Candidate(NamedTuple):
    """A layout that the config accepts, and what it needs.

    Attributes:
        config: the config with the layout.
        need: of one processor.
    """

    config: Config
    need: Need


class _Constraints(mtf.Operation):
    """Does nothing; tells auto_mtf what it must keep whole and what else must divide.

    Args:
        mesh: of the graph.
        whole: names of dimensions that no layout may split.
        sizes: dimensions whose sizes must be divisible too.
    """

    def __init__(self, mesh: mtf.Mesh, whole: Sequence[str], sizes: Sequence[mtf.Dimension]):
        super().__init__([], mesh=mesh, name="constraints")
        self._outputs = [
            mtf.Tensor(self, mtf.Shape([dim]), tf.bool, index=index)
            for index, dim in enumerate(sizes)
        ]
        self._splittable_dims = frozenset(dim.name for dim in sizes)
        self._unsplittable_dims = frozenset(whole)


class _Question(NamedTuple):
    """A graph that auto_mtf is asked about.

    Attributes:
        graph: of a training step.
        outputs: what the step must not free.
    """

    graph: mtf.Graph
    outputs: list[mtf.Tensor]


def _question(
    config: Config, processors: int, whole: Sequence[str], experts_with_batch: bool
) -> _Question:
    """Builds a training step of which auto_mtf may split what a config may.

    In this graph attention keeps no partial results, as it does when ``memory_length`` is split:
    such proposals look cheaper than they are, until they are compared.

    Args:
        config: of the model.
        processors: of the mesh.
        whole: names of dimensions that must not be split.
        experts_with_batch: whether experts are on the mesh axis of the batch.
    """
    dims = Dimensions.from_config(config, config.train_batch_size)
    # A vocabulary in so many pieces can be put on any axis that divides them.
    axes = (("pieces", math.gcd(config.n_vocab, processors)), ("rows", 1))
    rules = [(dims.vocab.name, "pieces"), (dims.batch.name, "rows")]
    if experts_with_batch and dims.mixture is not None:
        rules.append((dims.mixture.experts.name, "rows"))
    graph, built = declared_graph(config, MeshLayout(axes, tuple(rules)))
    names = {
        dim.name
        for operation in graph.operations
        for tensor in operation.outputs
        for dim in tensor.shape.dims
    }
    evaluated = Dimensions.from_config(config, config.eval_batch_size).batch
    _Constraints(built.loss.mesh, [*(names - set(DIMENSION_NAMES)), *whole], [evaluated])
    return _Question(graph, [built.loss, built.updates.gradient_norm])


def _questions(config: Config, processors: int) -> Iterator[_Question]:
    """With and without the dimensions that generation needs whole; both ways to place experts."""
    # auto_mtf sees one microbatch, as large as its splits need. It would take a block that is
    # computed again for one operation, whose dimensions must all be on different axes.
    rows = config.train_batch_size // config.microbatches
    rows = math.lcm(rows, math.gcd(config.train_batch_size, processors))
    small = with_layers(config, one_of_each(config)).model_copy(
        update={
            "train_batch_size": rows,
            "tokens_per_mb_per_replica": None,
            "recompute_grad": False,
        }
    )
    for experts_with_batch in (False, True) if config.moe_layers else (False,):
        for whole in ((), WHOLE_IN_GENERATION):
            yield _question(small, processors, whole, experts_with_batch)


def _proposal(question: _Question, axes: Axes) -> dict[str, str]:
    """The layout that auto_mtf finds, as dimension name -> mesh axis.

    Raises:
        RuntimeError: it finds none.
    """
    auto_mtf = load_auto_mtf()
    mesh_shape = mtf.Shape([mtf.Dimension(name, size) for name, size in axes])
    try:
        rules = auto_mtf.layout(question.graph, mesh_shape, question.outputs)
    except auto_mtf.layout_optimizer.SolverError as error:
        raise RuntimeError(f"auto_mtf found no layout: {error}") from error
    found = {}
    for name in DIMENSION_NAMES:
        axis = rules.tensor_dimension_to_mesh_axis(mtf.Dimension(name, 1), mesh_shape)
        if axis is not None:
            found[name] = axes[axis][0]
    return in_order_of_axes(found, axes)


def in_order_of_axes(rules: dict[str, str], axes: Axes) -> dict[str, str]:
    """Takes axes of equal size in the order of the mesh: it is all one which of them is which."""
    sizes = dict(axes)
    free = [name for name, _ in axes]
    renamed: dict[str, str] = {}
    for axis in dict.fromkeys(rules.values()):
        renamed[axis] = next(name for name in free if sizes[name] == sizes[axis])
        free.remove(renamed[axis])
    return {dim: renamed[axis] for dim, axis in rules.items()}


def _candidate(config: Config, axes: Axes, rules: dict[str, str]) -> Optional[Candidate]:
    """The config with another mesh and layout.

    Returns:
        None if it would be refused, or if processors along an axis would all do the same.
    """
    if any(size > 1 and name not in rules.values() for name, size in axes):
        return None
    changed = {
        "mesh_shape": ",".join(f"{name}:{size}" for name, size in axes),
        "layout": ",".join(f"{dim}:{rules[dim]}" for dim in DIMENSION_NAMES if dim in rules),
    }
    try:
        checked = parse_config(config.to_json_dict() | changed)
    except ConfigError:
        return None
    return Candidate(checked, predict_need(checked))


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """The one that needs the least memory; among equals, the one that sends the least."""
    least = min(candidate.need.peak_bytes for candidate in candidates)
    near = [item for item in candidates if item.need.peak_bytes <= SAME * least]
    return min(near, key=lambda item: (item.need.sent_bytes, item.need.flops, item.config.layout))


def _is_no_worse(need: Need, than: Need) -> bool:
    return all(new <= SAME * old for new, old in zip(need, than))


def _pruned(candidate: Candidate, batch: str) -> Candidate:
    """The candidate without rules that do not help; the rule of the batch stays."""
    config = candidate.config
    rules, kept = dict(config.layout_rules), candidate
    for dim in tuple(rules):
        if dim == batch:
            continue
        fewer = {name: axis for name, axis in rules.items() if name != dim}
        simpler = _candidate(config, config.mesh_axes, fewer)
        if simpler is not None and _is_no_worse(simpler.need, candidate.need):
            rules, kept = fewer, simpler
    return kept


def find_layouts(
    config: Config, meshes: Sequence[Axes], own: Optional[Candidate] = None
) -> list[Candidate]:
    """The best layout of each mesh, the best of all first.

    Args:
        config: a checked config.
        meshes: to choose from, all of one size, more than one processor.
        own: the config as it is, if its mesh is one of them: a candidate too.

    Raises:
        RuntimeError: OR-Tools is not installed, or auto_mtf finds no layout.
        ValueError: no mesh has a layout that the config's rules allow.
    """
    processors = math.prod(size for _, size in meshes[0])
    batch = Dimensions.from_config(config, config.train_batch_size).batch.name
    questions = list(_questions(config, processors))
    best = []
    for axes in meshes:
        proposed = {frozenset(_proposal(question, axes).items()) for question in questions}
        candidates = []
        if own is not None and axes == config.mesh_axes:
            candidates.append(own)
            proposed.discard(frozenset(config.layout_rules))
        for rules in sorted(proposed, key=sorted):
            candidate = _candidate(config, axes, dict(rules))
            if candidate is not None:
                candidates.append(candidate)
        if candidates:
            best.append(best_of(candidates))
    if not best:
        raise ValueError(
            f"the number of processors must divide batches or sizes of the model; got {processors} "
            "and no layout that the config allows. Name another number of devices with --gpu_ids."
        )
    first = best_of(best)
    others = [candidate for candidate in best if candidate is not first]
    return [first if first is own else _pruned(first, batch), *others]


def mesh_shapes(config: Config, processors: int) -> list[Axes]:
    """Meshes of one or two axes, the first the longer; names are the config's, then x and y.

    Args:
        config: whose axis names are used.
        processors: of each mesh.
    """
    names = list(dict.fromkeys([*(name for name, _ in config.mesh_axes), "x", "y"]))
    shapes: list[Axes] = [((names[0], processors),)]
    for second in range(2, math.isqrt(processors) + 1):
        if processors % second == 0:
            shapes.append(((names[0], processors // second), (names[1], second)))
    return shapes
