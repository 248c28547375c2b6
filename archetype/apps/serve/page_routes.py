"""The paths behind the page's screens; whoever imports this loads all specifications and what they cost."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from archetype.apps.serve import kv_cache, positions, recipes, specs
from archetype.apps.serve.engine_bar import EngineBar
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.reports import Reports
from archetype.apps.serve.runs import Runs


def page_routes(
    models: Models, runs: Path, reports: Sequence[Path], is_stopping: Callable[[], bool]
) -> dict[str, Callable[[Exchange], Awaitable[None]]]:
    """The handler of each path.

    Args:
        models: that are served.
        runs: the folder of training runs that the page shows.
        reports: the folders of reports of studies that it shows.
        is_stopping: whether the server stops, which ends all streams.
    """
    trained, studies, bar = Runs(runs), Reports(reports), EngineBar(models, is_stopping)
    return {
        "/api/spec/evaluate": partial(specs.evaluate, models),
        "/api/spec/position": partial(positions.position, models),
        "/api/spec/cache": partial(kv_cache.cache, models),
        "/api/spec/recipe": partial(recipes.recipe, models),
        "/api/spec/schema": specs.schema,
        "/api/presets": specs.presets,
        "/api/models": partial(specs.served_models, models),
        "/api/events": bar.events,
        "/api/state": bar.state,
        "/api/reports": studies.show,
        "/api/reports/{name}": studies.describe,
        "/api/pictures/{name}": studies.picture,
        "/api/runs": trained.show,
        "/api/runs/{name:path}/metrics": trained.metrics,
        "/api/runs/{name:path}": trained.describe,
    }
