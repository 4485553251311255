"""The emulator finds what a GPU hides: accesses outside, races, divergence, missing waits; warp ops."""

import numpy as np
import pytest
from codegen_samples import kernel, plan_of, run
from test_codegen_kernels import ARCHS, matrices, tiled

from tilewright.codegen import EmulatorBuilder, emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir.types import storage_dtype
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import DeviceError, DeviceMissingError, KernelBuildError
from tilewright.runtime.interface.device import Device
from tilewright.runtime.plan.execution_plan import Buffer, Launch

pytestmark = pytest.mark.emulator
X = np.arange(32, dtype=np.float32)
PARAMS = {"x": "f32[32]", "y": "f32[32]"}


def emulate(body: str, params: dict[str, str] | None = None, block: int = 32, seed: int = 1) -> np.ndarray:
    return run(kernel(body, params or PARAMS, block=block), "emulator", [X], seed=seed)["y"]


COPY = "%v = thread.load(%x, at = [FROM]) : f32\nthread.store(%v, %y, at = [TO])"


USE = COPY.replace("FROM", "tid").replace("TO", "tid")


def copy(read: str = "tid", write: str = "tid") -> np.ndarray:
    return emulate(COPY.replace("FROM", read).replace("TO", write))


def test_a_right_kernel_runs_in_any_order():
    for seed in (0, 1, 2):
        np.testing.assert_array_equal(
            emulate(COPY.replace("FROM", "31 - tid").replace("TO", "tid"), seed=seed), X[::-1]
        )


def test_reads_and_writes_outside_of_buffers_are_found():
    with pytest.raises(
        DeviceError, match=r"kernel 'k', block \(0,0,0\), thread \d+: read outside .* 'x' of 128 bytes"
    ):
        copy(read="tid + 100000")
    with pytest.raises(DeviceError, match=r"write outside of the buffer 'y' of 128 bytes, at byte -4"):
        copy(write="tid - 1")
    with pytest.raises(
        DeviceError, match=r"thread 31: write outside of the buffer 'y' of 128 bytes, at byte 128"
    ):
        copy(write="tid + 1")


def test_writes_to_inputs_are_found():
    plan = plan_of(emit_cuda(kernel(COPY.replace("FROM", "tid").replace("TO", "tid"), PARAMS)))
    with EmulatorDevice(EmulatorBuilder()).load(plan, {}) as loaded:
        loaded.plan = plan.replace(launches=(Launch("k", ("x", "y"), (1, 1, 1), 32, writes=()),))
        with pytest.raises(DeviceError, match="write to a buffer the launch does not declare as written 'y'"):
            loaded.run([X])


@pytest.mark.parametrize("space", ["shared", "reg"])
def test_indices_outside_of_arrays_are_found(space):
    body = f"""
      %t = thread.alloc() : f32[4, 8] in {space}
      %v = thread.load(%x, at = [tid]) : f32
      thread.store(%v, %t, at = [0, tid // 3])
      %w = thread.load(%t, at = [0, 0]) : f32
      thread.store(%w, %y, at = [tid])"""
    with pytest.raises(DeviceError, match=r"index 8 is outside of the array in line \d+: t\[0\]\[tid / 3\]"):
        emulate(body, seed=0)


def test_dynamic_shared_memory_ends_at_a_guard_page():
    body = """
      %s = thread.alloc() : f32[2, 8192] in shared
      %v = thread.load(%x, at = [tid]) : f32
      thread.store(%v, %s, at = [tid, 0])
      thread.store(%v, %y, at = [tid])"""
    with pytest.raises(DeviceError, match="write beyond the end of shared memory"):
        emulate(body, seed=0)


@pytest.mark.parametrize("space", ["shared", "reg"])
def test_memory_is_poisoned_before_use(space):
    got = emulate(f"%t = thread.alloc() : f32[4] in {space}\n%v = thread.load(%t, at = [1]) : f32\n"
                  "thread.store(%v, %y, at = [tid])\n%u = thread.load(%x, at = [tid]) : f32")  # fmt: skip
    assert (np.isnan(got) | (np.abs(got) > 1e30)).all()


def test_outputs_are_poisoned_before_use():
    got = emulate(
        "%v = thread.load(%x, at = [tid]) : f32\nthread.store(%v, %y, at = [tid], mask = [[tid, 0, 8]])"
    )
    assert np.isnan(got[8:]).all()
    np.testing.assert_array_equal(got[:8], X[:8])


def test_a_missing_barrier_shows():
    a, b = matrices()
    got = run(tiled(barrier=""), "emulator", [a, b])["c"]
    assert not np.allclose(got, np.maximum(a @ b, 0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_barrier_of_a_warp_where_one_of_the_block_is_missing_shows(seed):
    """A warp may be far ahead of the others, which have not yet written what it reads."""
    x = np.arange(128, dtype=np.float32)
    body = """
      %s = thread.alloc() : f32[128] in shared
      %v = thread.load(%x, at = [tid]) : f32
      thread.store(%v, %s, at = [tid])
      thread.BARRIER()
      %w = thread.load(%s, at = [127 - tid]) : f32
      thread.store(%w, %y, at = [tid])"""
    params = {"x": "f32[128]", "y": "f32[128]"}

    def emulated(barrier: str) -> np.ndarray:
        source = kernel(body.replace("BARRIER", barrier), params, block=128)
        return run(source, "emulator", [x], seed=seed)["y"]

    np.testing.assert_array_equal(emulated("barrier"), x[::-1])
    assert np.isnan(emulated("warp_barrier")).any()


def test_divergence_at_a_barrier_is_found():
    with pytest.raises(
        DeviceError, match=r"diverge: thread \d+ (has ended|waits at the barrier in line \d+)"
    ):
        emulate(USE + "thread.if(mask = [[tid, 0, 16]]) { thread.barrier() }")
    body = f"""{USE}
      thread.if(mask = [[tid, 0, 16]]) {{ thread.barrier() }}
      thread.if(mask = [[tid, 16, 32]]) {{ thread.barrier() }}"""
    with pytest.raises(
        DeviceError, match=r"waits at the barrier in line \d+ while thread \d+ waits at the barrier"
    ):
        emulate(body)


def test_divergence_at_a_shuffle_is_found():
    body = """
      %v = thread.load(%x, at = [tid]) : f32
      thread.if(mask = [[tid, 0, 16]]) {
        %w = thread.shuffle(%v, offset = 1) : f32
        thread.store(%w, %y, at = [tid])
      }"""
    with pytest.raises(DeviceError, match=r"diverge: .*waits at the shuffle in line \d+"):
        emulate(body)


@pytest.mark.parametrize("kind", ["down", "up", "xor", "index"])
def test_shuffles(kind):
    dtypes, body, params = ("f32", "f16", "i8", "f64", "bool"), "", {}
    for d in dtypes:
        params |= {f"x_{d}": f"{d}[64]", f"y_{d}": f"{d}[2, 64]"}
        body += f"%v_{d} = thread.load(%x_{d}, at = [tid]) : {d}\n"
        for row, (offset, width) in enumerate(((3, 32), (5, 8))):
            how = f'kind = "{kind}", offset = {offset}, width = {width}'
            body += f"""%w_{d}{row} = thread.shuffle(%v_{d}, {how}) : {d}
            thread.store(%w_{d}{row}, %y_{d}, at = [{row}, tid])\n"""
    func = kernel(body, params, block=64)
    for arch in ARCHS:
        compile_cuda(emit_cuda(func).source, arch=arch)
    arrays = {d: (np.arange(64) % (2 if d == "bool" else 100)).astype(storage_dtype(d)) for d in dtypes}
    got = run(func, "emulator", list(arrays.values()))
    lane = np.arange(64)
    for row, (offset, width) in enumerate(((3, 32), (5, 8))):
        start = lane // width * width
        source = {
            "down": lane + offset,
            "up": lane - offset,
            "xor": lane ^ offset,
            "index": start + offset % width,
        }[kind]
        source = np.where((source >= start) & (source < start + width), source, lane)
        for d in dtypes:
            np.testing.assert_array_equal(
                got[f"y_{d}"][row], arrays[d][source], err_msg=f"{d} {offset} {width}"
            )


ASYNC = """
  %s = thread.alloc() : f32[32] in shared
  thread.copy_async(%x, %s, src = [tid], dst = [tid], mask = [[tid, 0, 20]])
  COMMIT
  WAIT
  %v = thread.load(%s, at = [tid]) : f32
  thread.store(%v, %y, at = [tid])"""


def test_asynchronous_copies_arrive_only_after_their_wait():
    def copied(commit: str, wait: str) -> np.ndarray:
        return emulate(ASYNC.replace("COMMIT", commit).replace("WAIT", wait))

    commit, wait = "thread.async_commit()", "thread.async_wait(pending = 0)"
    np.testing.assert_array_equal(copied(commit, wait), np.where(X < 20, X, 0))
    assert np.isnan(copied(commit, "")).all()
    assert np.isnan(copied("", wait)).all()
    assert np.isnan(copied(commit, "thread.async_wait(pending = 1)")).all()


def product(dtype: str, transposed: bool, pitch: int) -> str:
    """C[60, 30] = A[60, 64] @ B[64, 32] by four warps: two stages of copies in flight, fragments, bounds."""
    b_tile, b_row, b_step = ("[2, 32, {}]", "tid // 4", 4) if transposed else ("[2, 16, {}]", "tid // 8", 8)
    b_tile = b_tile.format(pitch if transposed else pitch + 16)
    b_source = (
        "[tid // 4, (STEP) * 16 + tid % 4 * 4]" if transposed else "[(STEP) * 16 + tid // 8, tid % 8 * 4]"
    )
    stage = f"""
      thread.copy_async(%a, %as, src = [tid // 2, (STEP) * 16 + tid % 2 * 8],
                        dst = [SLOT, tid // 2, tid % 2 * 8], lanes = 8,
                        mask = [[STEP, 0, 4], [tid // 2, 0, 60]])
      thread.if(mask = [[STEP, 0, 4]]) {{
        thread.copy_async(%b, %bs, src = {b_source}, dst = [SLOT, {b_row}, tid % {b_step} * 4], lanes = 4)
      }}
      thread.async_commit()"""
    tiles = range(0, 32, 8)
    role = f'role = "b"{", transposed = true" if transposed else ""}'
    return "\n".join(
        [
            f"%as = thread.alloc() : {dtype}[2, 64, {pitch}] in shared",
            f"%bs = thread.alloc() : {dtype}{b_tile} in shared",
            f"%fa = thread.alloc() : {dtype}[16, 16] in frag\n%fb = thread.alloc() : {dtype}[16, 8] in frag",
            *(
                f"%c{n} = thread.alloc() : f32[16, 8] in frag\nthread.fill_fragment(%c{n}, value = 0.0)"
                for n in tiles
            ),
            stage.replace("STEP", "0").replace("SLOT", "0"),
            "thread.loop(var = k, extent = 4) {",
            stage.replace("STEP", "k + 1").replace("SLOT", "(k + 1) % 2"),
            "thread.async_wait(pending = 1)\nthread.barrier()",
            'thread.load_fragment(%fa, %as, at = [k % 2, tid // 32 * 16, 0], role = "a")',
            *(
                f"thread.load_fragment(%fb, %bs, {role},"
                f" at = [k % 2, {f'{n}, 0' if transposed else f'0, {n}'}])\n"
                f"thread.mma(%fa, %fb, %c{n}, shape = [16, 8, 16])"
                for n in tiles
            ),
            "thread.barrier()\nthread.yield()\n}",
            *(
                f"thread.store_fragment(%c{n}, %c, at = [tid // 32 * 16, {n}], "
                f"mask = [[tid // 32 * 16, 0, 60], [{n}, 0, 30]])"
                for n in tiles
            ),
        ]
    )


@pytest.mark.parametrize("pitch", [24, 20])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_product_on_fragments(dtype, transposed, pitch):
    params = {
        "a": f"{dtype}[60, 64]",
        "b": f"{dtype}{'[32, 64]' if transposed else '[64, 32]'}",
        "c": "f32[60, 30]",
    }
    func = kernel(product(dtype, transposed, pitch), params, block=128)
    source = emit_cuda(func)
    assert ("ldmatrix" in source.source) == (pitch == 24)
    assert "cp.async" in source.source
    for arch in ("sm_80", "sm_90a") if dtype == "bf16" else ARCHS:
        binary = compile_cuda(source.source, arch=arch)
        assert binary.kernels["k"].spill_bytes == 0
    rng, t = np.random.default_rng(2), storage_dtype(dtype)
    a, b = rng.standard_normal((60, 64)).astype(t), rng.standard_normal((64, 32)).astype(t)
    got = run(func, "emulator", [a, np.ascontiguousarray(b.T) if transposed else b])["c"]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64)[:, :30], rtol=1e-4, atol=1e-4)


def test_tf32_product():
    body = """
      %fa = thread.alloc() : f32[16, 8] in frag
      %fb = thread.alloc() : f32[8, 8] in frag
      %fc = thread.alloc() : f32[16, 8] in frag
      thread.load_fragment(%fc, %d, at = [0, 0], role = "c")
      thread.loop(var = k, extent = 2) {
        thread.load_fragment(%fa, %a, at = [0, k * 8], role = "a", transposed = false)
        thread.load_fragment(%fb, %b, at = [0, k * 8], role = "b", transposed = true)
        thread.mma(%fa, %fb, %fc, shape = [16, 8, 8])
        thread.yield()
      }
      thread.store_fragment(%fc, %c, at = [0, 0])"""
    func = kernel(body, {"a": "f32[16, 16]", "b": "f32[8, 16]", "d": "f32[16, 8]", "c": "f32[16, 8]"})
    for arch in ("sm_80", "sm_90a"):
        compile_cuda(emit_cuda(func).source, arch=arch)
    rng = np.random.default_rng(3)
    a, b, d = (rng.standard_normal(s).astype(np.float32) for s in ((16, 16), (8, 16), (16, 8)))
    got = run(func, "emulator", [a, b, d])["c"]
    exact = a.astype(np.float64) @ b.T + d
    assert np.abs(got - exact).max() < 1e-2
    assert np.abs(got - exact).max() > 1e-6


def test_plans_of_several_launches_with_constants_aliases_and_times():
    plan = plan_of(emit_cuda(kernel(COPY.replace("FROM", "31 - tid").replace("TO", "tid"), PARAMS)))
    buffers = (
        Buffer("w", "float32", (32,), "constant", 128),
        Buffer("t", "float32", (2, 32), "arena", 256),
        Buffer("low", "float32", (32,), "alias", 128, 0, "t"),
        Buffer("high", "float32", (32,), "alias", 128, 128, "t"),
        Buffer("x", "float32", (32,), "input", 128),
        Buffer("y", "float32", (32,), "output", 128),
    )
    block = {"grid": (1, 1, 1), "block": 32, "writes": (1,)}
    launches = (
        Launch("k", ("x", "high"), **block),
        Launch("k", ("w", "low"), **block),
        Launch("k", ("high", "y"), **block, deps=(0,)),
    )
    plan = plan.replace(
        buffers=buffers, launches=launches, inputs=("x",), outputs=("y", "t"), arena_bytes=256
    )
    w = X * 2
    seen: list[tuple[int, int, str]] = []
    device: Device = EmulatorDevice(EmulatorBuilder())
    with device.load(plan, {"w": w}, progress=lambda *a: seen.append(a)) as loaded:
        for scale in (1, 3):
            y, t = loaded.run([X * scale])
            np.testing.assert_array_equal(y, X * scale)
            np.testing.assert_array_equal(t, [w[::-1], X[::-1] * scale])
        assert len(loaded.time([X], 3)) == 3
        assert [len(s) for s in loaded.time_kernels([X], 2)] == [2, 2, 2]
    assert seen == [(1, 1, "k")]
    with pytest.raises(DeviceError, match="closed"):
        loaded.run([X])


def test_what_is_missing_or_does_not_compile_is_told():
    with pytest.raises(DeviceMissingError, match=r"C\+\+ compiler.*no-such-compiler"):
        EmulatorDevice(EmulatorBuilder(compiler="no-such-compiler"))
    plan = plan_of(emit_cuda(kernel(COPY.replace("FROM", "tid").replace("TO", "tid"), PARAMS)))
    (code,) = plan.kernels
    broken = plan.replace(kernels=(type(code)(code.name, code.entry, "cuda", code.source.replace("}", "")),))
    with pytest.raises(KernelBuildError, match=r"kernel 'k': .* cannot build it"):
        EmulatorDevice(EmulatorBuilder()).load(broken, {})


def test_binaries_come_from_the_cache(monkeypatch):
    plan = plan_of(emit_cuda(kernel(COPY.replace("FROM", "tid").replace("TO", "tid"), PARAMS)))
    EmulatorDevice(EmulatorBuilder()).load(plan, {}).close()
    monkeypatch.setattr(EmulatorBuilder, "_compile", lambda *a: "compiled again")
    EmulatorDevice(EmulatorBuilder()).load(plan, {}).close()


def test_a_kernel_that_never_ends_is_stopped():
    body = """
      %v = thread.load(%x, at = [tid]) : f32
      %w = thread.loop(%v, var = i, extent = 2000000000) : f32 {
        ^(%p: f32)
        %q = scalar.sin(%p) : f32
        thread.yield(%q)
      }
      thread.store(%w, %y, at = [tid])"""
    plan = plan_of(emit_cuda(kernel(body, PARAMS)))
    with (
        EmulatorDevice(EmulatorBuilder(), timeout_s=0.3).load(plan, {}) as loaded,
        pytest.raises(DeviceError, match=r"did not finish within 0\.3 s"),
    ):
        loaded.run([X])
