"""Check every invariant on every example of a kind."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

import torch

from archetype.checking import construction, decoding, files, gradients, passes, splitting
from archetype.checking.examples import Example, examples
from archetype.checking.passes import WRONG
from archetype.checking.subject import CPU, Inapplicable, Subject, Violated
from archetype.errors import one_line
from archetype.spec.kinds import Part

Result = Literal["holds", "fails", "-"]
Check = Callable[[Subject], None]
MAX_FINDING = 200  # characters


class Invariant(NamedTuple):
    """Property that every model must have.

    Attributes:
        check: raises `Violated` or `Inapplicable`; any other exception is a failure, too.
        needs: checks without which this check is not informative.
        of_defaults_only: whether only the first example is checked, to save time.
    """

    name: str
    check: Check
    needs: tuple[Check, ...] = (construction.is_built,)
    of_defaults_only: bool = False


class Row(NamedTuple):
    """Result of checking an invariant.

    Attributes:
        invariant: name of the invariant.
        result: holds, fails, or `-` if it was not checked.
        finding: observation if it fails, reason if it was not checked, otherwise empty.
    """

    invariant: str
    result: Result
    finding: str = ""


class Report(NamedTuple):
    """Results for one kind.

    Attributes:
        role: name of the role in words.
        kind: name of the kind.
        examples: names of the checked models.
        rows: one result per invariant.
    """

    role: str
    kind: str
    examples: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Whether no invariant fails."""
        return all(row.result != "fails" for row in self.rows)


# An invariant is only checked if the invariants that it needs hold, so that one mistake causes one failure.
INVARIANTS = (
    Invariant("YAML and JSON round trip", construction.round_trip, ()),
    Invariant("a module is built", construction.is_built, ()),
    Invariant("parameters as counted", construction.parameters_are_counted),
    Invariant("state bytes as counted", construction.state_is_counted, (construction.parameters_are_counted,)),
    Invariant("a diagram shows all that is counted", construction.is_drawn, (construction.parameters_are_counted,)),
    Invariant("finite numbers", passes.is_finite),
    Invariant("as on the CPU", passes.device_changes_nothing, (passes.is_finite,)),
    Invariant("later tokens change nothing", passes.future_changes_nothing, (passes.is_finite,)),
    Invariant("a batch as single rows", passes.batch_is_single, (passes.future_changes_nothing,)),
    Invariant("padded rows as each alone", passes.padding_is_nothing, (passes.batch_is_single,)),
    Invariant("with a state as without", decoding.state_changes_nothing, (passes.future_changes_nothing,)),
    Invariant("in chunks as whole", decoding.chunks_are_whole, (decoding.state_changes_nothing,)),
    Invariant(
        "padding leaves states alone",
        decoding.padding_leaves_states,
        (passes.padding_is_nothing, decoding.chunks_are_whole),
    ),
    Invariant("rows join and leave", decoding.rows_join_and_leave, (decoding.padding_leaves_states,)),
    Invariant("bfloat16 autocast is finite", gradients.autocast_is_finite, (passes.is_finite,)),
    Invariant("every parameter gets a gradient", gradients.every_parameter_learns, (passes.is_finite,)),
    Invariant("compiled blocks as eager", passes.compiled_is_eager, of_defaults_only=True),
    Invariant("saved and read to the bit", files.run_keeps_bits),
    Invariant("exported exactly or refused", files.export_is_honest),
    Invariant("tensor parallel shares sum", splitting.shares_sum_to_whole),
)


def check_kind(
    role: type[Part],
    kind: type[Part],
    fixed: Mapping[str, Any] | None = None,
    without: Collection[Check] = (),
    device: torch.device = CPU,
    tell: Callable[[str, str], None] | None = None,
) -> Report:
    """Check every invariant on every example of a kind.

    Args:
        fixed: values of fields that no example changes (default: none).
        without: checks to leave out.
        tell: called with the names of an example and an invariant before each check.

    Raises:
        SpecError: no example of the kind is valid.
    """
    checked = examples(role, kind, fixed)
    asked = [invariant for invariant in INVARIANTS if invariant.check not in without]
    results = [check_example(example, asked, example is checked[0], device, tell) for example in checked]
    rows = (_joined([example.name for example in checked], rows) for rows in zip(*results, strict=True))
    name = str(kind.model_fields["kind"].default)
    return Report(role.role_name(), name, tuple(example.name for example in checked), tuple(rows))


def check_example(
    example: Example,
    asked: Collection[Invariant] = INVARIANTS,
    is_first: bool = True,
    device: torch.device = CPU,
    tell: Callable[[str, str], None] | None = None,
) -> list[Row]:
    """Check invariants on one model, in order, skipping those that need a failed one."""
    # `cause`: check -> name of the failed invariant
    subject, rows, cause = Subject(example.model, device), [], dict[Check, str]()
    for invariant in asked:
        if invariant.of_defaults_only and not is_first:
            rows.append(Row(invariant.name, "-", "only checked for the defaults"))
        elif failed := [cause[check] for check in invariant.needs if check in cause]:
            rows.append(Row(invariant.name, "-", f"needs: {failed[0]}"))
            cause[invariant.check] = failed[0]
        else:
            if tell is not None:
                tell(example.name, invariant.name)
            rows.append(_ask(invariant, subject))
            if rows[-1].result == "fails":
                cause[invariant.check] = invariant.name
    return rows


@torch.no_grad()
def _ask(invariant: Invariant, subject: Subject) -> Row:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            invariant.check(subject)
    except Inapplicable as reason:
        return Row(invariant.name, "-", str(reason))
    except Violated as violation:
        # a part may amplify rounding, which vanishes in float64; a mistake does not
        if violation.difference < WRONG and subject is not subject.exact:
            return _ask(invariant, subject.exact)
        return Row(invariant.name, "fails", str(violation))
    except Exception as error:  # any exception from an extension's part is a finding
        return Row(invariant.name, "fails", one_line(f"{type(error).__name__}: {error}", MAX_FINDING))
    return Row(invariant.name, "holds")


def _joined(examples: list[str], rows: tuple[Row, ...]) -> Row:
    # one row for all examples: the first failure, else the first success, else the first reason for skipping
    failing = [(name, row) for name, row in zip(examples, rows, strict=True) if row.result == "fails"]
    if failing:
        name, row = failing[0]
        others = f" (and {len(failing) - 1} of {len(rows) - 1} others)" if len(failing) > 1 else ""
        return row._replace(finding=f"{name}: {row.finding}{others}")
    return next((row for row in rows if row.result == "holds"), rows[0])
