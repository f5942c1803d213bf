"""Buffers exist from the step that makes them to the last that reads them."""

from inspection.liveness import Buffer, Step, lifetimes, occupancy


def bytes_per_step(steps):
    return occupancy(lifetimes(steps), len(steps))


def test_a_chain_holds_two_buffers_at_a_time():
    a, b, c = Buffer(3, "a"), Buffer(5, "b"), Buffer(7, "c")
    assert bytes_per_step([Step((), (a,)), Step((a,), (b,)), Step((b,), (c,))]) == [3, 8, 12]


def test_a_buffer_lives_until_its_last_reader():
    a, b, c = Buffer(3, "a"), Buffer(5, "b"), Buffer(7, "c")
    assert bytes_per_step([Step((), (a,)), Step((a,), (b,)), Step((a, b), (c,))]) == [3, 8, 15]


def test_an_elementwise_step_writes_over_what_it_reads_last():
    a, b = Buffer(4, "a"), Buffer(4, "b")
    assert bytes_per_step([Step((), (a,)), Step((a,), (b,), in_place=True)]) == [4, 4]


def test_an_elementwise_step_keeps_what_is_read_later_or_has_another_size():
    a, b, c = Buffer(4, "a"), Buffer(4, "b"), Buffer(2, "c")
    steps = [Step((), (a,)), Step((a,), (b,), True), Step((a,), (c,), True), Step((b, c), ())]
    assert bytes_per_step(steps) == [4, 8, 10, 6]


def test_two_results_do_not_take_over_one_buffer():
    a, b, c = Buffer(4, "a"), Buffer(4, "b"), Buffer(4, "c")
    assert bytes_per_step([Step((), (a,)), Step((a, a), (b, c), in_place=True)]) == [4, 8]
