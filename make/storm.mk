# Pipelines under faults. The library steps the clock of what it is preloaded to.
STORM_CLOCK := $(BUILD)/tests/storm/clock.so

$(STORM_CLOCK): tests/storm/clock.c
	@mkdir -p $(@D)
	$(call say,LD)$(CC) $(CPPFLAGS) $(filter-out -fsanitize%,$(CFLAGS)) -fPIC -shared -o $@ $<

e2e: $(STORM_CLOCK)

.PHONY: storm storm-recovery
storm: programs $(STORM_CLOCK) ## run pipelines under a minute of faults, or STORM=N faults; SEED=S; PLAN=FILE plays a printed plan
	@BIN=$(BUILD)/bin tests/storm/storm $(STORM:%=--faults %) $(SEED:%=--seed %) $(PLAN:%=--plan %)

storm-recovery: programs ## measure how long a run stands still after a killed stage, a cut, a machine that is gone
	@BIN=$(BUILD)/bin tests/storm/recovery
