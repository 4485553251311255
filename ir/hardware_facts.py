"""Facts that hold for all hardware of a kind, each with one name; what differs stands in the records.

Source: CUDA C++ Programming Guide and PTX ISA (GPUs); for CPUs, what x86 and most ARM processors have.
"""

#: threads of a warp
WARP = 32
#: warps that issue a `wgmma` instruction together (sm_90a)
WARPGROUP_WARPS = 4
#: bytes of the widest load or store of one thread
VECTOR_BYTES = 16
#: bytes that one asynchronous copy to shared memory may move, widest first
ASYNC_COPY_BYTES = (16, 8, 4)
#: bytes of a line of a GPU's caches, and of the sectors it is fetched by
LINE_BYTES = 128
SECTOR_BYTES = 32
#: bytes that a multiprocessor receives from the L2 in a cycle at most
PORT_BYTES_PER_CLK = 64
#: banks of shared memory, each of which delivers four bytes at once
BANKS = 32
#: bytes of a line of a CPU's caches
CPU_LINE_BYTES = 64
#: rows and columns of the tile of one `mma.sync` instruction, and its depth in bytes of one row of factors
MMA_M, MMA_N, MMA_K_BYTES = 16, 8, 32
#: bytes that one `ldmatrix` of four matrices moves
LDMATRIX_BYTES = 512
#: bytes in whole multiples of which blocks are given shared memory, compute capability 8 and later
SHARED_UNIT = 128
#: registers of a thread are given in units of so many
REGISTER_UNIT = 8
#: registers that a thread may be given (PTX: setmaxnreg), and those of a multiprocessor (capability 5 to 9)
MOST_REGISTERS = 256
REGISTERS_PER_SM = 65_536
#: bytes of one instruction, compute capability 7 and later (CUDA Binary Utilities)
INSTRUCTION_BYTES = 16
#: exponentials per multiprocessor and cycle: throughput of arithmetic instructions, compute capability 7 to 9
EXPONENTIALS_PER_SM_PER_CLK = 16
