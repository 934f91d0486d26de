# Measurements: never part of a test. PEER_PYTHON=python (with torch and transformers) adds the ratios.
BENCH := $(BUILD)/bench

BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))

$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(LIBRARY)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: bench
bench: all $(BENCHES) $(OPS_HARNESS) ## operations, one group, a clip, stages, the pipeline; PyTorch beside them with PEER_PYTHON=...
	@BUILD=$(BUILD) PEER_PYTHON=$(PEER_PYTHON) tests/bench/run
