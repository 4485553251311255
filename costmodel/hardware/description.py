"""Hardware records: the constants of one device as a frozen dataclass, with units in the field names.

A record is read from TOML by `tilewright.costmodel.hardware.loader`; every constant there carries its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.costmodel.hardware.coefficients import (
    AttentionCoefficients,
    ChainCoefficients,
    ContractCoefficients,
    CpuContractCoefficients,
    CpuLayoutCoefficients,
    CpuStreamCoefficients,
    FusionCoefficients,
    GpuFusionCoefficients,
    LayoutCoefficients,
    MatrixCoefficients,
    OrderedCoefficients,
    RelayCoefficients,
    RowsCoefficients,
    StreamCoefficients,
    WindowCoefficients,
)

#: `origin` of a record as it comes with Tilewright; that of a calibrated one says when and where
SHIPPED = "shipped"


@dataclass(frozen=True)
class GpuHardware:
    """One NVIDIA GPU.

    Constants without the prefix `estimate_` enter the sound bound and are therefore optimistic (best ever
    seen). Those with it are of the estimators and can be calibrated one by one; `contract` to `fusion` are
    coefficients of the estimator of one kind of kernels.

    sources: (constant, where its value comes from) of every constant, a coefficient under the name of its
    table and its own ("matrix.loop_share"). devices: (constant, device) of those that were measured on, or
    fitted to, one device, which may be another than this one. stands_for: the device or architecture without
    a record that this record is used for; empty where it is its own.
    """

    name: str
    targets: tuple[str, ...]
    device_names: tuple[str, ...]
    clock_hz: float
    sm_count: int
    fma_per_sm_per_clk: int
    schedulers_per_sm: int
    dram_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_clk: float
    smem_bytes_per_sm_per_clk: float
    smem_per_block_max_bytes: int
    smem_per_sm_bytes: int
    smem_reserved_per_block_bytes: int
    registers_per_sm: int
    max_registers_per_thread: int
    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    launch_floor_s: float
    lat_fetch_clk: float
    lat_smem_clk: float
    lat_fma_clk: float
    tensor_fma_16bit_per_sm_per_clk: int
    tensor_fma_tf32_per_sm_per_clk: int
    mma_sync_share: float
    wgmma_share: float
    lat_mma_clk: float
    lat_l2_clk: float
    estimate_mma_efficiency: float
    estimate_launch_s: float
    estimate_fetch_clk: float
    estimate_barrier_clk: float
    estimate_issue_efficiency: float
    estimate_dram_efficiency: float
    estimate_l2_bytes_per_sm_per_clk: float
    estimate_exposed_share: float
    contract: ContractCoefficients = field(hash=False, repr=False)
    matrix: MatrixCoefficients = field(hash=False, repr=False)
    attention: AttentionCoefficients = field(hash=False, repr=False)
    chain: ChainCoefficients = field(hash=False, repr=False)
    window: WindowCoefficients = field(hash=False, repr=False)
    rows: RowsCoefficients = field(hash=False, repr=False)
    stream: StreamCoefficients = field(hash=False, repr=False)
    ordered: OrderedCoefficients = field(hash=False, repr=False)
    relay: RelayCoefficients = field(hash=False, repr=False)
    layout: LayoutCoefficients = field(hash=False, repr=False)
    fusion: GpuFusionCoefficients = field(hash=False, repr=False)
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    origin: str = field(default=SHIPPED, compare=False, repr=False)
    devices: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    stands_for: str = field(default="", compare=False, repr=False)

    @property
    def tensor_fma_8bit_per_sm_per_clk(self) -> int:
        """Dense multiply-adds of signed bytes, summed in 32 bits, by mma.sync m16n8k32; 0 before sm_80.

        Twice those of 16 bits: NVIDIA's A100 and H100 whitepapers state dense INT8 rates of 624 and 1979
        TOPS beside 312 and 989 TFLOPS. The architectures with TF32 are those with this instruction.
        """
        return 2 * self.tensor_fma_16bit_per_sm_per_clk if self.tensor_fma_tf32_per_sm_per_clk else 0

    @property
    def tensor_fma_float8_per_sm_per_clk(self) -> int:
        """Dense multiply-adds of 8-bit floats (e4m3), by wgmma m64nNk32; 0 on devices without warpgroups.

        Twice those of 16 bits: NVIDIA's H100 whitepaper states a dense FP8 rate of 1979 TFLOPS beside 989.
        """
        return 2 * self.tensor_fma_16bit_per_sm_per_clk if self.wgmma_share > 0 else 0

    @property
    def peak_flops_per_s(self) -> float:
        """R_peak = 2 fma N_SM clk: dense float32 FMA peak of the SIMT lanes."""
        return 2.0 * self.fma_per_sm_per_clk * self.sm_count * self.clock_hz

    @property
    def l2_bytes_per_s(self) -> float:
        """Device-wide L2 bandwidth at the record's clock."""
        return self.l2_bytes_per_clk * self.clock_hz

    @property
    def cluster_register_bytes(self) -> int:
        """Registers of the blocks of the largest portable cluster, 8 (CUDA C++ Programming Guide); 0 without.

        Devices with warpgroups have clusters.
        """
        return 8 * 4 * self.registers_per_sm if self.wgmma_share > 0 else 0


@dataclass(frozen=True)
class CpuHardware:
    """One CPU driven through OpenCL: cores with SIMD lanes and a cache hierarchy.

    sources, devices, stands_for: as those of `GpuHardware`.
    """

    name: str
    targets: tuple[str, ...]
    device_names: tuple[str, ...]
    cores: int
    clock_hz: float
    simd_lanes: int
    vector_registers: int
    fma_per_core_per_clk: int
    loads_per_core_per_clk: int
    lat_fma_clk: float
    dram_bytes_per_s: float
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    max_threads_per_block: int
    launch_floor_s: float
    estimate_clock_hz: float
    estimate_dram_bytes_per_s: float
    estimate_l2_bytes_per_core_per_clk: float
    estimate_l3_bytes_per_core_per_clk: float
    estimate_work_group_s: float
    estimate_launch_s: float
    estimate_loop_clk: float
    estimate_exposed_share: float
    contract: CpuContractCoefficients = field(hash=False, repr=False)
    stream: CpuStreamCoefficients = field(hash=False, repr=False)
    layout: CpuLayoutCoefficients = field(hash=False, repr=False)
    fusion: FusionCoefficients = field(hash=False, repr=False)
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    origin: str = field(default=SHIPPED, compare=False, repr=False)
    devices: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    stands_for: str = field(default="", compare=False, repr=False)

    @property
    def peak_flops_per_s(self) -> float:
        """2 flops x SIMD lanes x FMA pipes x cores x clock."""
        return 2.0 * self.simd_lanes * self.fma_per_core_per_clk * self.cores * self.clock_hz

    @property
    def cache_bytes(self) -> int:
        """Bytes that may stay on chip between two launches: last level plus every core's private level."""
        return self.l3_bytes + self.cores * self.l2_bytes


Hardware = GpuHardware | CpuHardware
