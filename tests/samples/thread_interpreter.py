"""A NumPy interpreter of thread-level kernels that also finds races: an oracle for passes and generators.

All threads of a block advance together, one op at a time. That order equals every other one exactly when no
two threads touch an element between two barriers, one of them writing; the interpreter refuses such kernels.
Blocks share nothing but the kernel's parameters, so many of them advance together too.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from tilewright.ir.expr import Expr, evaluate
from tilewright.ir.nodes import Block, Func, Op, Value, walk
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, storage_dtype

WARP = 32
#: threads, of one block or of several, that advance together
MOST_THREADS = 1 << 15
Env = dict[str, int | np.ndarray]


class KernelFault(AssertionError):
    """The kernel races, leaves its buffers, misaligns a vector or diverges at a barrier."""


def run_kernel(func: Func, *arrays: np.ndarray, races: bool = True) -> list[np.ndarray]:
    """Run a kernel on copies of `arrays` (one per parameter) and return all of them afterwards.

    races: also refuse unsynchronised accesses to shared memory.
    """
    assert len(arrays) == len(func.params), f"@{func.name} takes {len(func.params)} arrays, got {len(arrays)}"
    buffers = {}
    for p, a in zip(func.params, arrays, strict=True):
        assert a.shape == p.tensor.shape, f"expected shape {p.tensor.shape}, got {a.shape}"
        buffers[p] = np.array(a, storage_dtype(p.tensor.dtype))
    places = np.array([(x, y, z) for z, y, x in product(*(range(n) for n in reversed(func["grid"])))])
    together = max(1, MOST_THREADS // int(func["block"])) if _all_blocks_wait_alike(func) else 1
    for first in range(0, len(places), together):
        _Blocks(func, buffers, places[first : first + together], races).run()
    return [buffers[p] for p in func.params]


def _all_blocks_wait_alike(func: Func) -> bool:
    """Whether no branch, which only some blocks may take, groups asynchronous copies or waits for them."""
    branches = [op for op in walk(func.body) if op.name == "thread.if" and op.body is not None]
    return not any(o.name.startswith("thread.async") for op in branches for o in walk(op.body))


def poison(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array nobody should read: nan for floats, a strange number for integers."""
    np_dtype = storage_dtype(dtype)
    if np_dtype == np.bool_:
        return np.ones(shape, np_dtype)
    if np.issubdtype(np_dtype, np.integer):
        return np.full(shape, 77, np_dtype)
    return np.full(shape, np.nan, np_dtype)


class _Watch:
    """Who read and wrote each element of one shared buffer since the last barrier, and what is in flight.

    Every block has `size` elements of its own and `count` threads; both are numbered through all blocks.
    """

    def __init__(self, blocks: int, size: int, count: int) -> None:
        self.blocks, self.size, self.count = blocks, size, count
        self.lowest = {k: np.full(blocks * size, np.iinfo(np.int64).max) for k in "rw"}
        self.highest = {k: np.full(blocks * size, -1) for k in "rw"}
        self.flying = np.zeros(blocks * size, bool)

    def clear(self, blocks: np.ndarray) -> None:
        """Forget what these blocks (a mask) did."""
        for k in "rw":
            self.lowest[k].reshape(self.blocks, -1)[blocks] = np.iinfo(np.int64).max
            self.highest[k].reshape(self.blocks, -1)[blocks] = -1

    def note(self, kind: str, elements: np.ndarray, threads: np.ndarray, what: str) -> None:
        if self.flying[elements].any():
            raise KernelFault(f"{what} touches an element whose asynchronous copy is unfinished")
        np.minimum.at(self.lowest[kind], elements, threads)
        np.maximum.at(self.highest[kind], elements, threads)
        low, high = self.lowest["w"][elements], self.highest["w"][elements]
        if kind == "w":
            low = np.minimum(low, self.lowest["r"][elements])
            high = np.maximum(high, self.highest["r"][elements])
        race = (high >= 0) & ((low != threads) | (high != threads))
        if race.any():
            at = int(np.argmax(race))
            other = low[at] if low[at] != threads[at] else high[at]
            both = f"threads {threads[at] % self.count} and {other % self.count}"
            raise KernelFault(f"{what}: {both} race on element {elements[at] % self.size}")


class _Blocks:
    """Blocks at `places` [blocks, (x, y, z)] of the grid; arrays of values have a row for every thread."""

    def __init__(
        self, func: Func, buffers: Mapping[Value, np.ndarray], places: np.ndarray, races: bool
    ) -> None:
        self.func, self.races = func, races
        self.blocks, self.each = len(places), int(func["block"])
        self.count = self.blocks * self.each
        self.rows = np.arange(self.count)
        self.block_of, self.tid = self.rows // self.each, self.rows % self.each
        self.env: Env = {"tid": self.tid}
        for name, at in zip(("bid.x", "bid.y", "bid.z"), places.T, strict=True):
            self.env[name] = int(at[0]) if (at == at[0]).all() else np.repeat(at, self.each)
        self.memory: dict[Value, np.ndarray] = dict(buffers)
        self.values: dict[Value, np.ndarray] = {}
        self.watches: dict[Value, _Watch] = {}
        self.open: list[tuple[Value, np.ndarray]] = []
        self.groups: list[list[tuple[Value, np.ndarray]]] = []

    def run(self) -> None:
        self.block(self.func.body, np.ones(self.count, bool))

    def block(self, block: Block, active: np.ndarray) -> tuple[np.ndarray, ...]:
        for op in block.ops:
            kind = op.name.partition(".")[2]
            if op.name in ("thread.yield", "thread.return"):
                return tuple(self.values[v] for v in op.operands)
            if op.name == "scalar.index":
                value = self.index(op["at"]).astype(storage_dtype(op["dtype"]))
                self.values[op.result] = value[:, None]
            elif op.name in ("scalar.broadcast", "scalar.extract"):
                self.lanes(op)
            elif op.level == "scalar":
                inputs = [self.values[v] for v in op.operands]
                (out,) = op_def(op.name).evaluate(inputs, dict(op.attrs))
                lanes = op.result.type.lanes
                self.values[op.result] = np.broadcast_to(np.atleast_1d(out), (self.count, lanes))
            else:
                getattr(self, kind)(op, active)
        return ()

    def index(self, e: Expr) -> np.ndarray:
        return np.broadcast_to(np.asarray(evaluate(e, self.env)), (self.count,))

    def mask(self, op: Op, active: np.ndarray) -> np.ndarray:
        for e, low, high in op.get("mask") or ():
            x, least, end = (evaluate(i, self.env) for i in (e, low, high))
            active = active & (least <= x) & (x < end)
        return active

    def lanes(self, op: Op) -> None:
        value = self.values[op.operands[0]]
        if op.name == "scalar.extract":
            self.values[op.result] = value[:, op["lane"], None]
        else:
            self.values[op.result] = np.broadcast_to(value, (self.count, op["lanes"]))

    # -- memory
    def alloc(self, op: Op, active: np.ndarray) -> None:
        t = op.result.tensor
        copies = self.blocks if t.space == "shared" else self.count
        self.memory[op.result] = poison((copies, *t.shape), t.dtype)
        if t.space == "shared":
            self.watches[op.result] = _Watch(self.blocks, t.size, self.each)

    def elements(self, op: Op, buffer: Value, at: Sequence[Expr], lanes: int, on: np.ndarray) -> np.ndarray:
        """Flat element numbers [active threads, lanes] of an access, checked against the buffer."""
        t: TensorType = buffer.tensor
        count = int(np.count_nonzero(on))
        flat: int | np.ndarray = 0
        for d, (e, n) in enumerate(zip(at, t.shape, strict=True)):
            x = evaluate(e, self.env)
            if isinstance(x, np.ndarray) and count < self.count:
                x = x[on]
            low, high = (x.min(), x.max()) if isinstance(x, np.ndarray) and x.size else (x, x)
            high = high + (lanes - 1 if d == t.rank - 1 else 0)
            if count and (low < 0 or high >= n):
                raise KernelFault(f"{op.name} [{op.loc}] at [{low}, {high}] leaves dimension {d} of {t}")
            flat = flat * n + x
        if count and lanes > 1 and np.any(flat % lanes):
            raise KernelFault(f"{op.name} [{op.loc}]: vector of {lanes} lanes is not aligned")
        first = self.in_block(buffer, flat, on)
        return np.broadcast_to(np.asarray(first)[..., None] + np.arange(lanes), (count, lanes))

    def in_block(self, buffer: Value, elements: int | np.ndarray, on: np.ndarray) -> int | np.ndarray:
        """Element numbers of one block's buffer as those of all blocks' buffers."""
        if buffer.tensor.space != "shared" or self.blocks == 1:
            return elements
        return self.block_of[on] * buffer.tensor.size + elements

    def note(self, kind: str, op: Op, buffer: Value, elements: np.ndarray, on: np.ndarray) -> None:
        if self.races and buffer in self.watches:
            threads = np.broadcast_to(self.rows[on][:, None], elements.shape)
            self.watches[buffer].note(kind, elements.ravel(), threads.ravel(), f"{op.name} [{op.loc}]")

    def read(self, buffer: Value, elements: np.ndarray, on: np.ndarray) -> np.ndarray:
        data = self.memory[buffer]
        if buffer.tensor.space == "reg":
            return data.reshape(self.count, -1)[self.rows[on][:, None], elements]
        return data.reshape(-1)[elements]

    def write(self, buffer: Value, elements: np.ndarray, on: np.ndarray, value: np.ndarray) -> None:
        data = self.memory[buffer]
        if buffer.tensor.space == "reg":
            data.reshape(self.count, -1)[self.rows[on][:, None], elements] = value
        else:
            data.reshape(-1)[elements] = value

    def load(self, op: Op, active: np.ndarray) -> None:
        (buffer,), lanes = op.operands, op["lanes"]
        on = self.mask(op, active)
        elements = self.elements(op, buffer, op["at"], lanes, on)
        self.note("r", op, buffer, elements, on)
        out = np.full((self.count, lanes), op["other"]).astype(self.memory[buffer].dtype)
        out[on] = self.read(buffer, elements, on)
        self.values[op.result] = out

    def store(self, op: Op, active: np.ndarray) -> None:
        value, buffer = op.operands
        on = self.mask(op, active)
        elements = self.elements(op, buffer, op["at"], value.type.lanes, on)
        self.note("w", op, buffer, elements, on)
        self.write(buffer, elements, on, self.values[value][on])

    def at_offset(self, op: Op, buffer: Value, offset: Value, on: np.ndarray) -> np.ndarray:
        elements = np.asarray(self.values[offset]).reshape(-1, 1)[on].astype(np.int64)
        if elements.size and (elements.min() < 0 or elements.max() >= buffer.tensor.size):
            raise KernelFault(f"{op.name} [{op.loc}] leaves {buffer.tensor}")
        return np.asarray(self.in_block(buffer, elements[:, 0], on))[:, None]

    def gather(self, op: Op, active: np.ndarray) -> None:
        buffer, offset = op.operands
        on, lanes = self.mask(op, active), op["lanes"]
        elements = self.at_offset(op, buffer, offset, on)
        if (elements % lanes).any() or (elements.size and elements.max() + lanes > self.memory[buffer].size):
            raise KernelFault(f"{op.name} [{op.loc}] reads {lanes} lanes where none begin")
        elements = elements + np.arange(lanes)
        self.note("r", op, buffer, elements, on)
        out = np.full((self.count, lanes), op["other"]).astype(self.memory[buffer].dtype)
        out[on] = self.read(buffer, elements, on)
        self.values[op.result] = out

    def scatter(self, op: Op, active: np.ndarray) -> None:
        value, buffer, offset, *flag = op.operands
        on = self.mask(op, active)
        if flag:
            on = on & np.broadcast_to(self.values[flag[0]][:, 0], on.shape)
        elements = self.at_offset(op, buffer, offset, on)
        self.note("w", op, buffer, elements, on)
        self.write(buffer, elements, on, self.values[value][on])

    def atomic_add(self, op: Op, active: np.ndarray) -> None:
        value, buffer = op.operands
        on = self.mask(op, active)
        elements = self.elements(op, buffer, op["at"], 1, on)
        np.add.at(self.memory[buffer].reshape(-1), elements, self.values[value][on])

    # -- asynchronous copies and barriers
    def copy_async(self, op: Op, active: np.ndarray) -> None:
        source, destination = op.operands
        lanes, on = op["lanes"], self.mask(op, active)
        target = self.elements(op, destination, op["dst"], lanes, active)
        data = np.zeros((self.count, lanes), self.memory[source].dtype)
        data[on] = self.read(source, self.elements(op, source, op["src"], lanes, on), on)
        self.note("w", op, destination, target, active)
        self.write(destination, target, active, data[active])
        if destination in self.watches:
            self.watches[destination].flying[target] = True
            self.open.append((destination, target))

    def async_commit(self, op: Op, active: np.ndarray) -> None:
        self.groups.append(self.open)
        self.open = []

    def async_wait(self, op: Op, active: np.ndarray) -> None:
        done = len(self.groups) - op["pending"]
        for group in self.groups[: max(done, 0)]:
            for buffer, elements in group:
                self.watches[buffer].flying[elements] = False
        self.groups = self.groups[max(done, 0) :]

    def barrier(self, op: Op, active: np.ndarray) -> None:
        waiting = active.reshape(self.blocks, self.each)
        blocks = waiting.all(axis=1)
        if (waiting.any(axis=1) != blocks).any():
            raise KernelFault("only some threads of the block reach a barrier")
        for watch in self.watches.values():
            watch.clear(blocks)

    # -- control and warps
    def wait_for_launches(self, op: Op, active: np.ndarray) -> None:
        """A single kernel has nothing to wait for."""

    release_dependents = wait_for_launches

    def prefetch(self, op: Op, active: np.ndarray) -> None:
        """Caches change no value."""

    def loop(self, op: Op, active: np.ndarray) -> None:
        carried = tuple(self.values[v] for v in op.operands)
        for i in range(op["extent"]):
            self.env[op["var"].name] = i
            self.values.update(zip(op.body.params, carried, strict=True))
            carried = self.block(op.body, active)
        self.env.pop(op["var"].name, None)
        self.values.update(zip(op.results, carried, strict=True))

    def role(self, op: Op, active: np.ndarray) -> None:
        """A role of all threads; several, which run side by side, are not interpreted."""
        if op["warps"] * WARP != self.each:
            raise KernelFault("roles beside each other are not interpreted")
        self.block(op.body, active)

    def __getattr__(self, name: str):
        if name == "if":  # a keyword, so it cannot be a method
            return self.branch
        raise KernelFault(f"thread.{name} is not interpreted")

    def branch(self, op: Op, active: np.ndarray) -> None:
        on = self.mask(op, active)
        if on.any():
            self.block(op.body, on)

    def shuffle(self, op: Op, active: np.ndarray) -> None:
        value, offset, width = self.values[op.operands[0]], self.index(op["offset"]), op["width"]
        lane = self.tid % width
        shifted = {
            "down": lane + offset,
            "up": lane - offset,
            "xor": lane ^ offset,
            "index": offset,
        }[op["kind"]]
        inside = (shifted >= 0) & (shifted < width)
        source = np.minimum(np.where(inside, self.tid - lane + shifted, self.tid), self.each - 1)
        self.values[op.result] = value[self.block_of * self.each + source]
