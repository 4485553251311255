"""Stream planning: how the kernels of one run are spread over streams, on an abstract graph."""
