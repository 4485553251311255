"""What a pass is: definition, registry, pipelines, instruments and reproducers."""
