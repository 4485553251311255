"""Relays by the model: which launches fit side by side, and what an early start saves."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.costmodel import load_hardware
from tilewright.costmodel.kernels.relays import Footprint, early_start_s, may_relay, relay_gain_s

H100 = load_hardware("H100")
HALF = H100.smem_per_sm_bytes // 2 - H100.smem_reserved_per_block_bytes
ONE = Footprint(blocks=132, threads=256, shared_bytes=HALF, registers=64)


def test_two_halves_of_a_multiprocessor_fit_and_more_do_not():
    assert ONE.fits_beside(ONE, H100)
    assert not ONE.fits_beside(replace(ONE, shared_bytes=HALF + 1), H100)
    assert not ONE.fits_beside(replace(ONE, blocks=133), H100)  # two blocks on one multiprocessor


@pytest.mark.parametrize(
    ("fits", "crowded"),
    [
        (Footprint(132, 1024, 0), Footprint(133, 1024, 0)),  # 2048 threads
        (Footprint(132, 512, 0, 64), Footprint(132, 512, 0, 72)),  # 64 K registers
        (Footprint(132 * 16, 32, 0), Footprint(132 * 16 + 1, 32, 0)),  # 32 blocks
    ],
)
def test_each_limit_of_a_multiprocessor_counts(fits, crowded):
    assert fits.fits_beside(fits, H100)
    assert not fits.fits_beside(crowded, H100)


def test_registers_that_nobody_knows_yet_take_little_place():
    unknown, all_of_them = Footprint(132, 1024, 0), Footprint(132, 512, 0, 128)
    assert unknown.fits_beside(unknown, H100)
    assert not Footprint(132, 1024, 0, 64).fits_beside(Footprint(132, 1024, 0, 64), H100)
    assert not unknown.fits_beside(all_of_them, H100)  # no kernel is without any


def test_registers_that_nobody_knows_yet_may_leave_a_block_alone():
    all_of_them = Footprint(132, 512, 0, 128)
    assert Footprint(49, 512, 0).takes_turns_after(all_of_them, H100)
    assert Footprint(49, 512, 0, 91).takes_turns_after(all_of_them, H100)
    assert not Footprint(49, 512, 0, 40).takes_turns_after(all_of_them, H100)
    assert not Footprint(49, 128, 0).takes_turns_after(all_of_them, H100)  # 255 registers leave room for two


def test_wide_clusters_leave_multiprocessors_out():
    blocks = 120  # 30 clusters of 4
    assert Footprint(blocks - 4, 128, HALF, cluster=4).blocks_per_sm(H100) == 1
    assert Footprint(132, 128, HALF, cluster=4).blocks_per_sm(H100) == 2
    assert Footprint(132, 128, HALF, cluster=2).blocks_per_sm(H100) == 1


footprints = st.builds(
    Footprint,
    blocks=st.integers(1, 4000),
    threads=st.integers(1, 1024),
    shared_bytes=st.integers(0, 200_000),
    registers=st.integers(0, 255),
)


@given(footprints, footprints)
def test_it_does_not_matter_which_launch_is_first(one, other):
    assert one.fits_beside(other, H100) == other.fits_beside(one, H100)


@given(footprints, footprints)
def test_what_takes_less_fits_as_well(one, other):
    if one.fits_beside(other, H100):
        less = replace(one, blocks=max(1, one.blocks // 2), shared_bytes=one.shared_bytes // 2)
        assert less.fits_beside(other, H100)


def test_blocks_that_have_a_multiprocessor_each_are_beside_each_other():
    large = Footprint(66, 1024, 2 * HALF, 64)
    assert large.fits_beside(large, H100)
    assert not large.fits_beside(replace(large, blocks=67), H100)
    assert not replace(large, cluster=2).fits_beside(large, H100)  # pairs may leave one out


def test_launches_take_turns_where_each_block_has_a_multiprocessor_alone():
    alone, small = replace(ONE, shared_bytes=HALF + 1), Footprint(132, 128, 0)
    assert not alone.fits_beside(alone, H100)
    assert alone.takes_turns_after(alone, H100)
    assert may_relay(alone, alone, H100)
    assert not alone.takes_turns_after(replace(alone, blocks=133), H100)
    assert not replace(alone, blocks=133).takes_turns_after(alone, H100)
    # where small blocks follow, several might go where the first multiprocessors are free
    assert not small.takes_turns_after(replace(alone, shared_bytes=2 * HALF), H100)
    assert early_start_s(alone, alone, H100) == H100.relay.turn_s
    assert early_start_s(ONE, ONE, H100) == H100.relay.boundary_s


def gain(first_s, second_s, second, early_bytes, in_l2=True):
    return relay_gain_s(first_s, second_s, ONE, second, early_bytes, H100, in_l2=in_l2)


def test_a_gain_is_the_boundary_and_the_weights_that_come_meanwhile():
    nothing = gain(1e-6, 1e-6, ONE, 0)
    assert nothing == H100.relay.boundary_s
    dram = H100.dram_bytes_per_s * H100.estimate_dram_efficiency
    cold = gain(1e-6, 1e-6, ONE, 1_000_000, in_l2=False)
    assert cold == pytest.approx(nothing + 1e6 / dram)
    assert nothing < gain(1e-6, 1e-6, ONE, 1_000_000) < cold
    # no more than the launch before takes
    assert gain(1e-6, 1e-6, ONE, 10**9, in_l2=False) == pytest.approx(nothing + 1e-6)


def test_many_blocks_of_a_long_launch_cost_more_than_the_boundary():
    few, many = Footprint(132, 128, 0), Footprint(132 * 8, 128, 0)
    assert gain(1e-6, 1e-6, many, 0) > 0
    assert gain(1e-6, 1e-3, many, 0) < 0
    assert gain(1e-6, 1e-3, few, 0) > 0  # a block each has one place to go


def test_turns_pay_before_short_launches_and_bring_no_weights():
    alone = replace(ONE, shared_bytes=HALF + 1)
    assert gain(1e-6, 1e-6, alone, 10**9) == gain(1e-6, 1e-6, alone, 0)
    assert 0 < gain(1e-6, 5e-6, alone, 0) < H100.relay.turn_s
    assert gain(1e-6, 5e-5, alone, 0) < 0
