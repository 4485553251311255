"""The execution plan as text: a module of the plan level, made of a plan and read back into one."""
