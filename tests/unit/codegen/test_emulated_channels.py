"""Channels on the emulator: right ones in any order of threads, faults of the protocol with what is stuck."""

import numpy as np
import pytest
from codegen_samples import checked, plan_of, run

from tilewright.codegen import EmulatorBuilder, emit_cuda
from tilewright.ir import parse
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import DeviceError

pytestmark = pytest.mark.emulator

TEXT = """module @m {
  thread.func @k(%x: f32[8, 128], %y: f32[8, 128], grid = [1, 1, 1], block = 256) {
    %tiles = thread.alloc() : f32[3, 128] in shared
    %ring = thread.channel(%tiles, slots = 3) : u64[2, 3] in shared
    thread.role(name = "copy", registers = 40) {
      thread.loop(var = i, extent = 8) {
        thread.acquire(%ring, item = i)
        thread.copy_async(%x, %tiles, src = [i, tid], dst = [i % 3, tid])
        thread.publish(%ring, item = i)
      }
    }
    thread.role(name = "add", registers = 232) {
      thread.loop(var = i, extent = 8) {
        thread.receive(%ring, item = i)
        %0 = thread.load(%tiles, at = [i % 3, 127 - tid]) : f32
        thread.store(%0, %y, at = [i, tid])
        thread.release(%ring, item = i)
      }
    }
    thread.return()
  }
}
"""
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
#: what a thread copies or stores: both arrive in a slot
FILL = "thread.copy_async(%x, %tiles, src = [i, tid], dst = [i % 3, tid])"
STORE = "%v = thread.load(%x, at = [i, tid]) : f32\n thread.store(%v, %tiles, at = [i % 3, tid])"


def emulate(old: str = "", new: str = "", seed: int = 1) -> np.ndarray:
    text = TEXT.replace(old, new) if old else TEXT
    assert old in TEXT
    return run(checked(parse(text)), "emulator", [X], seed=seed)["y"]


@pytest.mark.parametrize("fill", [FILL, STORE])
def test_items_arrive_in_any_order_of_threads(fill):
    for seed in range(4):
        np.testing.assert_array_equal(emulate(FILL, fill, seed), X[:, ::-1])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("        thread.release(%ring, item = i)\n", "",
         "stuck: role copy waits to acquire item 3 of channel ring until item 0 is released "
         ".0 of 4 arrivals.; role add waits to receive item 3"),
        ("thread.receive(%ring, item = i)", "thread.receive(%ring, item = i + 1)", "stuck: role"),
        ("thread.release(%ring, item = i)",
         "thread.release(%ring, item = i)\n thread.release(%ring, item = i)",
         "more than 4 arrivals|waits to acquire"),
    ],
    ids=["a release is dropped", "another item is received", "released twice"],
)  # fmt: skip
def test_faults_of_the_protocol_are_stuck_and_named(old, new, message):
    with pytest.raises(DeviceError, match=message):
        emulate(old, new)


def test_slots_given_back_are_poison():
    late = "thread.release(%ring, item = i)\n %1 = thread.load(%tiles, at = [i % 3, tid]) : f32"
    text = (
        "%0 = thread.load(%tiles, at = [i % 3, 127 - tid]) : f32\n        thread.store(%0, %y, at = [i, tid])"
    )
    got = emulate(text + "\n        thread.release(%ring, item = i)",
                  f"{late}\n thread.store(%1, %y, at = [i, tid])")  # fmt: skip
    assert not np.array_equal(got, X)
    assert np.isnan(got).any()


def test_consumers_that_do_not_wait_run_ahead_of_the_producer():
    with pytest.raises(DeviceError, match="stuck: role copy waits to acquire"):
        emulate("thread.receive(%ring, item = i)", "thread.prefetch(%x, at = [0, 0])")


@pytest.mark.parametrize("seed", [1, 5])
def test_first_data_are_stamped_by_the_role_that_receives_the_first_item(seed):
    source = emit_cuda(parse(TEXT).funcs[0], phases=True)
    assert source.source.count("threadIdx.x == 128 && i < 1") == 1
    with EmulatorDevice(EmulatorBuilder(), seed=seed).load(plan_of(source), {}) as loaded:
        y, ((_, start, end, _, data, loop),) = loaded.run([X])
    np.testing.assert_array_equal(y, X[:, ::-1])
    assert start < data < end
    assert loop == 0  # the loop stores results: what lies behind it is no tail
