"""Record a decode step as a list of native operations, and replay it without torch.

A `Recorder` sees every operation that torch dispatches during a step. Views cost nothing, operations with a native
kernel become entries of the list, and all others are called again at each replay. Tensors keep their addresses, so a
replay reads the current contents of token ids, lengths and caches. Results that depend only on weights and constants
are computed once. A step cannot be recorded if it reads values on the host, or if its shapes depend on values. Then the
step is still computed, once: it may change a state in ways that cannot be repeated.
"""

import ctypes
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archetype.native import products, rows  # noqa: F401  # whose translations they register
from archetype.native.arguments import Arguments, Entry
from archetype.native.kernels import FORMS, Kernels, are_alike
from archetype.native.library import Library
from archetype.native.torch_hooks import COMPOSITE
from archetype.native.translations import aten, translation_of

HOST_READS = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.__bool__, torch.Tensor.__int__)
# Tags of torch operations that a replay could not repeat: random numbers, values read on the host, shapes from values.
UNREPEATABLE = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Their results have no content yet, or are the same tensor, so a replay need not call them.
IGNORED = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.detach_.default}
# Torch operations that only copy or fill: the bits of a result do not depend on the input shapes.
MOVING = {
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.new_zeros.default,
    aten.gather.default,
    aten.scatter.value,
}


@dataclass
class NativeCall:
    """A native operation, with the addresses of the memory that it reads and writes."""

    entry: Entry
    reads: set[int]
    writes: set[int]


@dataclass
class TorchCall:
    """A torch operation that each replay calls again."""

    module: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]  # empty for an in-place operation
    reads: set[int]
    writes: set[int]

    def __call__(self) -> None:
        leaves = tree_leaves(self.function(*self.args, **self.kwargs))
        results = [leaf for leaf in leaves if isinstance(leaf, Tensor)] if self.outputs else []
        for output, result in zip(self.outputs, results, strict=True):
            if output.data_ptr() != result.data_ptr():
                output.copy_(result)  # later entries read the addresses of the recording


Call = NativeCall | TorchCall


@dataclass
class Replay:
    """A recorded step. Calling it recomputes the step in place."""

    library: Library
    segments: list["ctypes.Array[Entry] | TorchCall"]
    memory: list[Any] = field(repr=False)  # keeps tensors and arguments alive, since entries only hold addresses

    @property
    def foreign(self) -> list[str]:
        """Torch operations that do arithmetic, so their results may depend on the number of rows in the step."""
        calls = [segment for segment in self.segments if isinstance(segment, TorchCall)]
        return [f"{call.function} in {call.module}" for call in calls if call.function not in MOVING]

    @torch.inference_mode()
    def __call__(self, threads: int) -> None:
        """Compute the step with this many threads."""
        for segment in self.segments:
            if isinstance(segment, TorchCall):
                segment()
            else:
                self.library.run(segment, len(segment), threads)


class _Functions(TorchFunctionMode):
    """Mode that passes a recorder to functions called without a forward context, and refuses host reads of values."""

    def __init__(self, recorder: "Recorder") -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in HOST_READS:  # here, since torch reads some values without dispatching an operation
            self.recorder.refuse(f"{function.__name__} on the host")
        if (form := FORMS.get(function)) is None:
            return function(*args, **(kwargs or {}))
        with self:  # torch disables a mode while its handler runs
            return form(self.recorder, *args, **(kwargs or {}))


class Recorder(TorchDispatchMode, Kernels):
    """Recorder of all operations in its `with` block, which also serves as the kernels of the forward pass.

    Args:
        library: the compiled kernels.
        inputs: the tensors whose contents change between replays.
        threads: number of threads for the recorded step itself.
        any_rows: also record matrix products of many rows, for which torch may be faster.

    Attributes:
        refusal: the first operation that prevents the recording, with its module; None if the step can be replayed.
    """

    records = True

    def __init__(self, library: Library, inputs: Sequence[Tensor], threads: int = 1, any_rows: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._compiled, self.threads, self.any_rows = library, threads, any_rows
        self.calls: list[Call] = []
        self.refusal: str | None = None
        self.memory: list[Any] = [*inputs]
        self._inputs = {_memory(tensor) for tensor in inputs}
        # memory that the step may change in place: its inputs, and results of its operations
        self._own = set(self._inputs)
        self._functions = _Functions(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip this mode, torch would import its compiler, which takes seconds

    def __enter__(self) -> "Recorder":
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]

    def support(self, *tensors: Tensor) -> bool:
        """Return whether all tensors are on the CPU and all float32 or all bfloat16."""
        return are_alike(*tensors)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function._schema.is_mutable and function not in IGNORED and _memory(args[0]) not in self._own:
            self.refuse(f"{function}", ", which changes what the step did not make")
        if (translation := translation_of(function)) is not None:
            result = translation(self, function, *args, **kwargs)
            if result is not None:
                return result
        if function._can_decompose():
            # Torch disables this mode while its handler runs; the parts of the operation are to be recorded.
            super().__enter__()  # type: ignore[no-untyped-call]
            try:
                if function is aten.matmul.default:  # its Python decomposition imports sympy, in seconds
                    return function._op_dk(COMPOSITE, *args, **kwargs)
                return function.decompose(*args, **kwargs)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return self._torch_call(function, args, kwargs)

    def _torch_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if UNREPEATABLE & set(function.tags):
            self.refuse(f"{function}")
        result = function(*args, **kwargs)
        if self.refusal is not None:
            return result
        outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        reads = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        self.memory.extend(outputs)
        writes = {_memory(output) for output in outputs}
        if function._schema.is_mutable and function not in IGNORED:
            self.calls.append(TorchCall(_computing_module(), function, args, kwargs, (), reads, writes or reads))
        elif writes - reads:  # an output in memory that is read is a view: no call
            self._own |= writes - reads
            if function not in IGNORED:
                self.calls.append(TorchCall(_computing_module(), function, args, kwargs, outputs, reads, writes))
        return result

    def emit(self, arguments: Arguments, serial: bool = False) -> None:
        """Compute a native operation and record it. `serial` operations run in a single thread."""
        if arguments.is_empty:
            return
        entry = arguments.entry(serial)
        reads, writes = ({_memory(tensor) for tensor in tensors} for tensors in (arguments.tensors, arguments.writes))
        self.calls.append(NativeCall(entry, reads, writes))
        self._own |= writes
        self.memory.append(arguments)
        self.library.run(entry, 1, self.threads)

    def refuse(self, operation: str, cause: str = "") -> None:
        """Go on with the step without recording it."""
        self.refusal = self.refusal or f"{operation} in {_computing_module()}{cause}"

    def finish(self, outputs: Sequence[Tensor]) -> Replay:
        """Return the recorded step, without unused and constant calls."""
        assert self.refusal is None, self.refusal
        calls = self._needed(self._changing_calls(), outputs)
        # The native calls between two calls of torch are one array, which is computed in one parallel region.
        segments: list[ctypes.Array[Entry] | TorchCall] = []
        native: list[NativeCall] = []
        for call in calls:
            if isinstance(call, NativeCall):
                native.append(call)
                continue
            if native:
                segments.append(_scheduled(native))
            native = []
            segments.append(call)
        if native:
            segments.append(_scheduled(native))
        return Replay(self.library, segments, self.memory)

    def _changing_calls(self) -> list[Call]:
        # Calls that touch memory that changes between replays, directly or through other calls. A call that fills a
        # tensor with constants is among them if a later call changes that tensor in place: each replay fills it again.
        changing, count = set(self._inputs), 0
        while len(changing) != count:
            count = len(changing)
            for call in self.calls:
                if changing & (call.reads | call.writes):
                    changing |= call.writes
        return [call for call in self.calls if changing & (call.reads | call.writes)]

    def _needed(self, calls: list[Call], outputs: Sequence[Tensor]) -> list[Call]:
        # Backwards from what the caller reads: outputs, and inputs that are updated in place, such as caches.
        needed = {_memory(tensor) for tensor in outputs} | self._inputs
        result = []
        for call in reversed(calls):
            if needed & call.writes:
                needed |= call.reads
                result.append(call)
        return result[::-1]


def _computing_module() -> str:
    # The class of the innermost module on the call stack, for messages.
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return type(module).__name__
        frame = frame.f_back
    return "no module"


def _memory(tensor: Tensor) -> int:
    # The storage, so that views of one tensor are the same memory; empty storages have no address.
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _scheduled(calls: list[NativeCall]) -> "ctypes.Array[Entry]":
    """Return the entries as one array, with barriers where threads must wait for each other.

    All threads walk through the array, and a fast thread may be several entries ahead. Two entries conflict if one
    writes memory that the other reads or writes; then a barrier must separate them. Serial entries never conflict with
    each other, because the first thread computes all of them in order.
    """
    entries = (Entry * len(calls))()
    # memory used since the last barrier, by parallel entries (False) and by serial ones (True)
    read: dict[bool, set[int]] = {False: set(), True: set()}
    written: dict[bool, set[int]] = {False: set(), True: set()}
    for index, call in enumerate(calls):
        serial = bool(call.entry.serial)
        reads, writes = call.reads, call.writes
        # An entry must not read or overwrite what others write (RAW, WAW), nor overwrite what they still read (WAR).
        others = (False,) if serial else (False, True)
        call.entry.barrier = any(written[kind] & (reads | writes) or read[kind] & writes for kind in others)
        if call.entry.barrier:  # everything before it has been computed by all threads
            read, written = {False: set(), True: set()}, {False: set(), True: set()}
        read[serial] |= reads
        written[serial] |= writes
        entries[index] = call.entry
    return entries
