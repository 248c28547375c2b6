"""A run from its session to its finished directory."""

from collections.abc import Callable

from archetype.runs.directory import write_weights
from archetype.train import metrics
from archetype.train.loop import Event, Interrupted, train
from archetype.train.plot import draw_picture
from archetype.train.state import Session
from archetype.train.stop_signal import interruptible


def run(session: Session, watch: Callable[[Event], None]) -> Interrupted | None:
    """Train to the end, keeping metrics; then write the finished weights and the loss curve.

    Args:
        session: from `start` or `resume`.
        watch: is shown every event.

    Returns:
        Where and why it was interrupted; None where it finished.
    """
    file = session.run.metrics_file
    metrics.rewind(file, session.step)
    interrupted: Interrupted | None = None
    with interruptible() as interrupt:
        for event in train(session, interrupt):
            metrics.append(file, event)
            watch(event)
            if isinstance(event, Interrupted):
                interrupted = event
    measured = metrics.read(file)
    if measured:
        draw_picture(measured, session.run.loss_picture, session.model.spec.name or session.run.folder.name)
    if interrupted is None:
        write_weights(session.run, session.model)
    return interrupted
