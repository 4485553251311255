"""Helpers with inline PTX for roles and channels: barriers that count arrivals and bytes, registers of roles.

A slot is given back in the default form of the arrival: it publishes no data, and `.release.cluster` would
put a fence of the whole device into the loop.
"""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper

_ADDRESS = "(unsigned int)__cvta_generic_to_shared(barrier)"

helper(
    "channel",
    f"""
template <int slots, int full, int empty>
FN void NAME(unsigned long long* barriers, const char*) {{
    #pragma unroll
    for (int i = 0; i < 2 * slots; ++i) {{
        unsigned long long* barrier = barriers + i;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                     ::"r"({_ADDRESS}), "r"(i < slots ? full : empty));
    }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}}
""",
    "cuda",
    emulated=True,
)
# The emulator is told what lies in a slot, so that a slot given back is poison.
helper(
    "channel_holds",
    """
template <int slots>
FN void NAME(unsigned long long*, void*, int) {
}
""",
    "cuda",
    emulated=True,
)
helper(
    "role",
    """
FN void NAME(const char*) {
}
""",
    "cuda",
    emulated=True,
)
# All lanes of a warp have the same: the branch is one of the whole warp.
helper(
    "warpgroup",
    """
FN int NAME() {
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}
""",
    "cuda",
    emulated=True,
)
for _name, _way in (("up", "inc"), ("down", "dec")):
    helper(
        f"registers_{_name}",
        f"""
template <int count>
FN void NAME() {{
    asm volatile("setmaxnreg.{_way}.sync.aligned.u32 %0;" ::"n"(count));
}}
""",
        "cuda",
        emulated=True,
    )
helper(
    "named_barrier",
    """
template <int number, int threads>
FN void NAME() {
    asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(threads) : "memory");
}
""",
    "cuda",
    emulated=True,
)
# TW_SPIN_LIMIT: waits of debug builds end in a trap, so that a fault is an error and no hung device. Their
# loop is one statement: around a trap that it sees, the compiler keeps the launch's registers in every role.
helper(
    "mbarrier_wait",
    f"""
FN void NAME(unsigned long long* barrier, int parity) {{
    const unsigned int at = {_ADDRESS};
#ifdef TW_SPIN_LIMIT
    asm volatile("{{ .reg .pred p, q; .reg .u32 left; mov.u32 left, %2;\\n"
                 "again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done%=; "
                 "sub.u32 left, left, 1; setp.eq.u32 q, left, 0; @q trap; bra again%=;\\n"
                 "done%=: }}" ::"r"(at), "r"(parity), "n"(TW_SPIN_LIMIT) : "memory");
#else
    unsigned int done = 0;
    while (!done) {{
        asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    }}
#endif
}}
""",
    "cuda",
    emulated=True,
)
helper(
    "mbarrier_arrive",
    f"""
FN void NAME(unsigned long long* barrier) {{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"({_ADDRESS}) : "memory");
}}
""",
    "cuda",
    emulated=True,
)
helper(
    "mbarrier_expect",
    f"""
FN void NAME(unsigned long long* barrier, int nbytes) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"({_ADDRESS}), "r"(nbytes) : "memory");
}}
""",
    "cuda",
    emulated=True,
)
# The arrival of a thread when its copies of before have arrived, counted among those expected.
helper(
    "mbarrier_arrive_copies",
    f"""
FN void NAME(unsigned long long* barrier) {{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"({_ADDRESS}) : "memory");
}}
""",
    "cuda",
    emulated=True,
)
for _name, _sync, _threads in (("warp", "__syncwarp(); ", 32), ("warpgroup", "", 128)):
    helper(
        f"mbarrier_arrive_{_name}",
        f"""
FN void NAME(unsigned long long* barrier) {{
    {_sync}if (threadIdx.x % {_threads} == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"({_ADDRESS}) : "memory");
}}
""",
        "cuda",
        emulated=True,
    )
# A block's consumers give a slot back to every block of the cluster that fills it: each has its own barrier,
# at the same place of its shared memory. The default form again: what was read needs no release.
helper(
    "mbarrier_arrive_at",
    f"""
FN void NAME(unsigned long long* barrier, int rank) {{
    asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }}"
                 ::"r"({_ADDRESS}), "r"(rank) : "memory");
}}
""",
    "cuda",
    emulated=True,
)
for _name, _sync, _threads in (("warp", "__syncwarp(); ", 32), ("warpgroup", "", 128)):
    helper(
        f"mbarrier_arrive_{_name}_of",
        f"""
template <int blocks>
FN void NAME(unsigned long long* barrier) {{
    const int rank = (int)threadIdx.x % {_threads};
    {_sync}if (rank < blocks) @mbarrier_arrive_at@(barrier, rank);
}}
""",
        "cuda",
        emulated=True,
    )
helper(
    "mbarrier_arrive_thread_of",
    """
template <int blocks>
FN void NAME(unsigned long long* barrier) {
    for (int rank = 0; rank < blocks; ++rank) @mbarrier_arrive_at@(barrier, rank);
}
""",
    "cuda",
    emulated=True,
)
