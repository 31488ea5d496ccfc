help:
	@echo wip
