# Measurements: never part of a test. PEER_PYTHON=python (with torch and transformers) adds the ratios.
BENCH := $(BUILD)/bench

$(BUILD)/tests/bench/model: $(BUILD)/tests/bench/model.o $(LIBRARY)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: bench
bench: all $(BUILD)/tests/bench/model $(OPS_HARNESS) ## every figure: operations, stages, and the ratios with PEER_PYTHON=...
	@BUILD=$(BUILD) PEER_PYTHON=$(PEER_PYTHON) tests/bench/run
