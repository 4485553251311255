"""What is known at compile time: tensors and scalars that become constants, gathers that follow a rule."""
