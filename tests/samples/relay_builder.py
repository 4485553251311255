"""Writes networks as Relay text, line by line, with parameters made where they are used."""

import numpy as np

import tilewright as tw
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.passes import PassContext, Pipeline, run_pipeline


class Net:
    """`net("nn.relu({})", x)` appends a line and gives the name of its value."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.params, self.arrays, self.inputs, self.lines = [], {}, {}, []
        self.definitions = ""

    def _declare(self, name, array):
        shape = ", ".join(map(str, array.shape))
        self.params.append(f"%{name}: Tensor[({shape}), {array.dtype}]")

    def input(self, *shape, dtype="float32", high=None):
        name = f"in{len(self.inputs)}"
        integers = high is not None
        made = self.rng.integers(0, high, shape) if integers else self.rng.uniform(-1, 1, shape)
        self.inputs[name] = made.astype(dtype)
        self._declare(name, self.inputs[name])
        return f"%{name}"

    def weight(self, *shape, scale=None, positive=False):
        """Weights of a size that keeps values near one; `positive`: between a half and one and a half."""
        name = f"w{len(self.arrays)}"
        if positive:
            array = self.rng.uniform(0.5, 1.5, shape)
        else:
            fan = np.prod(shape[1:]) if len(shape) > 1 else 16
            array = self.rng.normal(size=shape) * (scale or 1 / np.sqrt(fan))
        self.arrays[name] = array.astype(np.float32)
        self._declare(name, self.arrays[name])
        return f"%{name}"

    def __call__(self, text, *args):
        self.lines.append(f"  %{len(self.lines)} = {text.format(*args)};")
        return f"%{len(self.lines) - 1}"

    def text(self, result):
        body = "\n".join([*self.lines, f"  {result}"])
        return f'#[version = "0.0.5"]\n{self.definitions}def @main({", ".join(self.params)}) {{\n{body}\n}}\n'

    def module(self, result):
        """The imported module with the weights bound."""
        return import_module(read_source(self.text(result), "net.relay"), self.arrays, list(self.inputs))

    def check(self, result, tolerance=1e-4, *, compiled=True):
        """Compiled code agrees with the reference, whose results come back; else the tensor level does."""
        module = self.module(result)
        tw.verify(module)
        inputs = list(self.inputs.values())
        wanted = tw.interpret(module, *inputs)
        if compiled:
            with tw.compile(module, target="opencl") as exe:
                got = exe(*inputs)
        else:
            passes = Pipeline.parse("infer-shapes, graph-to-tensor")
            got = tw.interpret(run_pipeline(module, passes, PassContext(verify_each=True)), *inputs)
        for g, w in zip(got, wanted, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            assert np.isfinite(w.astype(np.float64)).all()
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
        return wanted

    def conv(self, x, inputs, outputs, size, *, stride=1, pad=None, groups=1, more=""):
        """Convolution, batch norm and no activation."""
        pad = size // 2 if pad is None else pad
        w = self.weight(outputs, inputs // groups, size, size)
        y = self(
            f"nn.conv2d({{}}, {{}}, strides=[{stride}, {stride}], padding=[{pad}, {pad}, {pad}, {pad}], "
            f"groups={groups}, channels={outputs}, kernel_size=[{size}, {size}]{more})",
            x,
            w,
        )
        vectors = [self.weight(outputs, positive=True) for _ in range(4)]
        return self("nn.batch_norm({}, {}, {}, {}, {}).0", y, *vectors)

    def linear(self, x, inputs, outputs, bias=True):
        """Dense layer over the last dimension of a matrix."""
        y = self(f"nn.dense({{}}, {{}}, units={outputs})", x, self.weight(outputs, inputs))
        return self("nn.bias_add({}, {}, axis=-1)", y, self.weight(outputs)) if bias else y

    def norm(self, x, width, epsilon="1e-5f"):
        """Layer norm over the last dimension."""
        return self(
            f"nn.layer_norm({{}}, {{}}, {{}}, axis=-1, epsilon={epsilon})",
            x,
            self.weight(width, positive=True),
            self.weight(width),
        )
