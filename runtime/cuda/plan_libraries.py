"""The libraries one loaded plan uses, and its launches of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.runtime.errors import DeviceMissingError, InputError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.provider import PreparedCall, Provider, open_provider
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch
from tilewright.runtime.shared_memory import Shared


class PlanLibraries:
    """Opens what the library kernels of a plan need, shared with other plans; the context must be current.

    Raises `DeviceMissingError` for a library that is not installed and `InputError` for one of another
    version than the plan was compiled with: stored algorithms mean something to that version only.
    """

    def __init__(
        self,
        pool: Shared[Provider],
        plan: ExecutionPlan,
        opener: Callable[[str], Provider] = open_provider,
    ) -> None:
        self._pool = pool
        self._open: dict[str, Provider] = {}
        self._calls: list[PreparedCall] = []
        self._kernels = {
            k.name: LibraryKernel.from_json(k.source) for k in plan.kernels if k.language == "library"
        }
        try:
            for name, kernel in self._kernels.items():
                self._take(name, kernel, opener)
        except BaseException:
            self.close()
            raise

    def _take(self, name: str, kernel: LibraryKernel, opener: Callable[[str], Provider]) -> None:
        provider = kernel.provider
        if provider not in self._open:
            try:
                self._open[provider] = self._pool.take(provider, lambda: opener(provider))
            except DeviceMissingError as error:
                raise DeviceMissingError(f"kernel {name!r}: {error}") from None
        version = self._open[provider].version
        if version != kernel.version:
            raise InputError(
                f"kernel {name!r} was chosen from {provider} {kernel.version}, this machine has {version}: "
                "compile the network again, or with libraries=False"
            )

    def prepare(self, launch: Launch, addresses: Mapping[str, int], doing: str) -> PreparedCall:
        """One launch on the addresses of its buffers by name."""
        kernel = self._kernels[launch.kernel]
        roles = [argument.role for argument in kernel.arguments()]
        pointers = {role: addresses[name] for role, name in zip(roles, launch.args, strict=True)}
        self._calls.append(self._open[kernel.provider].prepare(kernel, pointers, doing))
        return self._calls[-1]

    def close(self) -> None:
        """Free the launches and give the libraries back; may be called twice."""
        while self._calls:
            self._calls.pop().close()
        while self._open:
            provider, _ = self._open.popitem()
            self._pool.give_back(provider, lambda opened: opened.close())
