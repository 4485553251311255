"""The report of a compilation: one self-contained HTML page with pictures, choices and generated code."""
