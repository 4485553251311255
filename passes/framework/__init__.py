"""The framework of passes: definition, registry, pipelines, instruments and reproducers."""
