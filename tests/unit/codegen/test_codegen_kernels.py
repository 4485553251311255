"""Whole kernels on OpenCL and the emulator: memory, loops, conditions, vectors, atomics; the text itself."""

import numpy as np
import pytest
from codegen_samples import DEVICES, SAMPLED_DEVICES, kernel, run, source_for

from tilewright.codegen import emit_cuda, emit_opencl, emitted_ops, emitter
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import InputError, UnsupportedError, op_defs, parse, show
from tilewright.ir.types import DTYPES, storage_dtype

ARCHS = ("sm_75", "sm_80", "sm_90a")

TILED = """
    %as = thread.alloc() : f32[32, 20] in shared
    %bs = thread.alloc() : f32[16, 36] in shared
    %acc = thread.alloc() : f32[4, 4] in reg
    %zero = scalar.const(value = 0.0, dtype = "f32") : f32
    thread.loop(var = i, extent = 4, unroll = 1) { thread.loop(var = j, extent = 4, unroll = 1) {
        thread.store(%zero, %acc, at = [i, j]) thread.yield() } thread.yield() }
    thread.loop(var = k, extent = 4) loc "relay:nn.dense#3" {
      thread.loop(var = r, extent = 2, unroll = 1) {
        %av = thread.load(%a, at = [bid.x * 32 + tid // 4 + r * 16, k * 16 + tid % 4 * 4], lanes = 4,
                          mask = [[bid.x * 32 + tid // 4 + r * 16, 0, 57]]) : f32x4
        thread.store(%av, %as, at = [tid // 4 + r * 16, tid % 4 * 4])
        %bv = thread.load(%b, at = [k * 16 + tid // 8 + r * 8, bid.y * 32 + tid % 8 * 4], lanes = 4) : f32x4
        thread.store(%bv, %bs, at = [tid // 8 + r * 8, tid % 8 * 4])
        thread.yield()
      }
      BARRIER
      thread.loop(var = kk, extent = 16, unroll = 4) {
        thread.loop(var = i, extent = 4, unroll = 1) {
          %x = thread.load(%as, at = [tid // 8 * 4 + i, kk]) : f32
          thread.loop(var = j, extent = 4, unroll = 1) {
            %y = thread.load(%bs, at = [kk, tid % 8 * 4 + j]) : f32
            %old = thread.load(%acc, at = [i, j]) : f32
            %new = scalar.fma(%x, %y, %old) : f32
            thread.store(%new, %acc, at = [i, j])
            thread.yield()
          }
          thread.yield()
        }
        thread.yield()
      }
      BARRIER
      thread.yield()
    }
    thread.loop(var = i, extent = 4, unroll = 1) loc "relay:nn.relu#4" {
      thread.loop(var = j, extent = 4, unroll = 1) {
        %v = thread.load(%acc, at = [i, j]) : f32
        %w = scalar.max(%v, %zero) : f32
        thread.store(%w, %c, at = [bid.x * 32 + tid // 8 * 4 + i, bid.y * 32 + tid % 8 * 4 + j],
                     mask = [[bid.x * 32 + tid // 8 * 4 + i, 0, 57]])
        thread.yield()
      }
      thread.yield()
    }"""
TILED_PARAMS = {"a": "f32[57, 64]", "b": "f32[64, 64]", "c": "f32[57, 64]"}


def tiled(barrier: str = "thread.barrier()"):
    return kernel(TILED.replace("BARRIER", barrier), TILED_PARAMS, grid="[2, 2, 1]", block=64)


def matrices():
    rng = np.random.default_rng(1)
    return rng.standard_normal((57, 64)).astype(np.float32), rng.standard_normal((64, 64)).astype(np.float32)


@pytest.mark.emulator
@pytest.mark.parametrize("target", SAMPLED_DEVICES)
def test_tiled_product_with_boundary_tile(target):
    a, b = matrices()
    got = run(tiled(), target, [a, b])["c"]
    np.testing.assert_allclose(got, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_tiled_product_compiles_without_spills(arch):
    (resources,) = compile_cuda(emit_cuda(tiled()).source, arch=arch).kernels.values()
    assert resources.spill_bytes == 0
    assert resources.static_shared_bytes == emit_cuda(tiled()).shared_bytes_static


def test_text_names_its_origins_and_is_the_same_twice():
    for name in DEVICES:
        source = source_for(tiled(), name)
        assert source.source == source_for(tiled(), name).source
        assert source.origins == ("relay:nn.dense#3", "relay:nn.relu#4")
        assert source.source.index("// relay:nn.dense#3") < source.source.index("// relay:nn.relu#4")
        assert source.writes == (2,)


def test_text_does_not_depend_on_the_route_it_came_by():
    func = tiled()
    module = parse(
        "module @m { thread.func @k(%x: f32[4], grid = [1, 1, 1], block = 1) { thread.return() } }"
    )
    again = parse(show(module.with_funcs((func,)))).funcs[0]
    assert emit_cuda(again).source == emit_cuda(func).source


def test_origins_cannot_leave_their_comment():
    body = '%v = thread.load(%x, at = [0]) : f32 loc "a\\nb\\\\"\nthread.store(%v, %y, at = [0])'
    text = emit_cuda(kernel(body, {"x": "f32[1]", "y": "f32[1]"})).source
    assert "// a_b_\n" in text


@pytest.mark.emulator
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_vectors_move_through_all_memories_at_any_alignment(dtype, target):
    body, params = (
        "%s = thread.alloc() : DT[2, 24] in shared\n%r = thread.alloc() : DT[16] in reg\n",
        {"x": "DT[2, 40]"},
    )
    for lanes in (2, 4, 8, 16):
        for shift in (0, 1):
            name = f"y{lanes}_{shift}"
            params[name] = "DT[2, 48]"
            body += f"""
              %a{name} = thread.load(%x, at = [tid, {shift}], lanes = {lanes}) : DTx{lanes}
              thread.store(%a{name}, %s, at = [tid, {shift}])
              thread.barrier()
              %b{name} = thread.load(%s, at = [1 - tid, {shift}], lanes = {lanes}) : DTx{lanes}
              thread.store(%b{name}, %r, at = [0])
              %c{name} = thread.load(%r, at = [0], lanes = {lanes}) : DTx{lanes}
              thread.store(%c{name}, %{name}, at = [tid, {2 * lanes + shift - shift * lanes}])
              %d{name} = thread.load(%x, at = [tid, {shift}], lanes = {lanes}, mask = [[tid, 1, 2]],
                                     other = 1) : DTx{lanes}
              thread.store(%d{name}, %{name}, at = [tid, {shift}], mask = [[tid, 0, 2]])
              thread.barrier()"""
    func = kernel(body.replace("DT", dtype), {k: v.replace("DT", dtype) for k, v in params.items()}, block=2)
    x = (np.arange(80) % 7 % (2 if dtype == "bool" else 99)).astype(storage_dtype(dtype)).reshape(2, 40)
    got = run(func, target, [x])
    one = np.ones((), x.dtype)
    for lanes in (2, 4, 8, 16):
        for shift in (0, 1):
            have, start = got[f"y{lanes}_{shift}"], 2 * lanes + shift - shift * lanes
            np.testing.assert_array_equal(have[:, start : start + lanes], x[::-1, shift : shift + lanes])
            kept = x[:, shift : shift + lanes].copy()
            kept[0] = one
            upper = min(shift + lanes, start)
            np.testing.assert_array_equal(have[:, shift:upper], kept[:, : upper - shift])


@pytest.mark.emulator
@pytest.mark.parametrize("target", SAMPLED_DEVICES)
@pytest.mark.parametrize("unroll", [0, 1, 3])
def test_loops_carry_values_in_parallel(unroll, target):
    body = f"""
      %a0 = scalar.const(value = 0, dtype = "i32") : i32
      %b0 = scalar.const(value = 1, dtype = "i32") : i32
      %v0 = scalar.broadcast(%b0, lanes = 4) : i32x4
      %a, %b, %v = thread.loop(%a0, %b0, %v0, var = i, extent = 9, unroll = {unroll}) : i32, i32, i32x4 {{
        ^(%p: i32, %q: i32, %w: i32x4)
        %n = scalar.add(%p, %q) : i32
        %m = scalar.mul(%w, %n) : i32x4
        thread.yield(%q, %n, %m)
      }}
      thread.store(%a, %y, at = [0])
      thread.store(%b, %y, at = [1])
      thread.store(%v, %y, at = [4])
      %e, %f = thread.loop(%a, %b, var = i, extent = 0) : i32, i32 {{
        ^(%p: i32, %q: i32)
        thread.yield(%q, %p)
      }}
      thread.store(%e, %y, at = [2])"""
    got = run(kernel(body, {"y": "i32[8]"}, block=1), target, [])["y"]
    product = np.prod([1, 2, 3, 5, 8, 13, 21, 34, 55], dtype=np.int64).astype(np.int32)
    assert got[:3].tolist() == [34, 55, 34]
    assert got[4:].tolist() == [product] * 4


@pytest.mark.emulator
@pytest.mark.parametrize("target", SAMPLED_DEVICES)
def test_atomic_additions(target):
    dtypes = ("i32", "u32", "i64", "u64", "f32", "f64")
    body, params = "", {}
    for d in dtypes:
        params[f"x_{d}"], params[f"y_{d}"] = f"{d}[128]", f"{d}[2]"
        body += f"""
          %s_{d} = thread.alloc() : {d}[1] in shared
          %zero_{d} = scalar.const(value = 0, dtype = "{d}") : {d}
          thread.if(mask = [[tid, 0, 1]]) {{
            thread.store(%zero_{d}, %s_{d}, at = [0])
            thread.store(%zero_{d}, %y_{d}, at = [0])
          }}
          thread.barrier()
          %v_{d} = thread.load(%x_{d}, at = [tid]) : {d}
          thread.atomic_add(%v_{d}, %s_{d}, at = [0])
          thread.atomic_add(%v_{d}, %y_{d}, at = [0], mask = [[tid, 0, 100]])
          thread.barrier()
          %t_{d} = thread.load(%s_{d}, at = [0]) : {d}
          thread.store(%t_{d}, %y_{d}, at = [1], mask = [[tid, 0, 1]])"""
    func = kernel(body, params, block=128)
    arrays = [np.arange(128).astype(storage_dtype(d)) for d in dtypes]
    got = run(func, target, arrays)
    for d in dtypes:
        assert got[f"y_{d}"].tolist() == [sum(range(100)), sum(range(128))], d
    if target == "emulator":
        for arch in ARCHS:
            compile_cuda(emit_cuda(func).source, arch=arch)


@pytest.mark.emulator
def test_shared_memory_beyond_48_kib_is_dynamic():
    body = """
      %s = thread.alloc() : f32[4, 32, 128] in shared
      %t = thread.alloc() : f16[5] in shared
      %v = thread.load(%x, at = [tid]) : f32
      thread.store(%v, %s, at = [3, 31, tid])
      thread.barrier()
      %w = thread.load(%s, at = [3, 31, 127 - tid]) : f32
      thread.store(%w, %y, at = [tid])"""
    func = kernel(body, {"x": "f32[128]", "y": "f32[128]"}, block=128)
    source = emit_cuda(func)
    assert (source.shared_bytes_static, source.shared_bytes_dynamic) == (0, 65536 + 16)
    for arch in ARCHS:
        compile_cuda(source.source, arch=arch)
    x = np.arange(128, dtype=np.float32)
    for target in DEVICES:
        np.testing.assert_array_equal(run(func, target, [x])["y"], x[::-1])


@pytest.mark.emulator
@pytest.mark.parametrize("target", DEVICES)
def test_rank_0_and_awkward_names(target):
    body = """
      %float = thread.load(%x, at = []) : f32
      %"tw_max f32" = scalar.neg(%float) : f32
      thread.store(%"tw_max f32", %restrict, at = [])"""
    got = run(kernel(body, {"x": "f32[]", "restrict": "f32[]"}, block=1), target, [np.array(3, np.float32)])
    assert got["restrict_"] == -3


def test_every_op_has_an_emitter_and_none_has_two():
    wanted = {d.name for d in op_defs() if d.name.startswith(("thread.", "scalar."))}
    assert wanted <= set(emitted_ops())
    with pytest.raises(ValueError, match=r"'thread\.load' has two emitters.*emit.memory.*here"):

        @emitter("thread.load")
        def here(e, op):
            """Never registered."""


def test_other_levels_are_refused():
    text = "module @m { graph.func @main(%x: f32[4]) -> f32[4] { graph.return(%x) } }"
    with pytest.raises(InputError, match=r"@main: code is generated from the thread level"):
        emit_cuda(parse(text).funcs[0])


def test_opencl_refuses_warp_operations():
    body = "%v = thread.load(%x, at = [tid]) : f32\n%w = thread.shuffle(%v, offset = 1) : f32"
    with pytest.raises(UnsupportedError, match=r"thread\.shuffle needs CUDA"):
        emit_opencl(kernel(body, {"x": "f32[32]"}))
    with pytest.raises(UnsupportedError, match=r"fragments need CUDA"):
        emit_opencl(kernel("%f = thread.alloc() : f32[16, 8] in frag", {"x": "f32[32]"}))


def test_long_unrolled_loops_stay_loops_in_opencl():
    body = """
      %z = scalar.const(value = 0.0, dtype = "f32") : f32
      thread.loop(var = i, extent = EXTENT, unroll = 1) { thread.store(%z, %y, at = [i]) thread.yield() }"""
    params = {"y": "f32[100000]"}
    assert "for (" not in emit_opencl(kernel(body.replace("EXTENT", "8"), params)).source
    assert "for (" in emit_opencl(kernel(body.replace("EXTENT", "100000"), params)).source
