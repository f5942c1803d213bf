"""The routes of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from serving.server import completions, gptj
from serving.server.errors import add_handlers
from serving.server.guard import Guard
from serving.server.service import Service

ROUTER = APIRouter()
_PAGE = Path(__file__).with_name("page.html")
# Of a browser: the page loads nothing, and speaks to this server only.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@ROUTER.get("/", include_in_schema=False)
async def page() -> Response:
    """A page to try the model on."""
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=_PAGE_HEADERS)


@ROUTER.head("/healthz", include_in_schema=False)  # of load balancers
@ROUTER.get("/healthz")
async def health(request: Request) -> Any:
    """Whether requests are answered: the model is loaded before the server is there."""
    service: Service = request.app.state.service
    return {"status": "ok", "model": service.name, "step": service.engine.step}


@ROUTER.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def make_app(service: Service, key: Optional[str] = None) -> FastAPI:
    """The application.

    Args:
        service: what is served.
        key: that requests must have; None for no key.
    """
    # FastAPI's own pages of documentation load scripts from elsewhere.
    app = FastAPI(title=service.name, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.questions = gptj.Questions(service.engine.most_waiting)
    for router in (ROUTER, completions.ROUTER, gptj.ROUTER):
        app.include_router(router)
    add_handlers(app)
    app.add_middleware(Guard, metrics=service.metrics, key=key)
    return app
