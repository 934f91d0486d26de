# Measurements: never part of a test. PEER_PYTHON=python (with torch and transformers) adds the ratios.
BENCH := $(BUILD)/bench

BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))

$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(LIBRARY)
	$(call say,LD)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/bench/classifier_bench: $(BUILD)/tests/ops/peak.o

$(BUILD)/tests/bench/media: $(BUILD)/tools/demo/clip_writer.o

# It saves groups without what the store holds for the page.
$(BUILD)/tests/bench/store_bench: LDFLAGS += -Wl,--wrap=lmdb_txn_put,--wrap=group_summary_make,--wrap=group_row_make

.PHONY: bench soak rank-demo
bench: programs $(BENCHES) $(OPS_HARNESS) ## measure operations, one group, a clip, a classifier, stages, the pipeline; PyTorch too with PEER_PYTHON=...
	@BUILD=$(BUILD) PEER_PYTHON=$(PEER_PYTHON) tests/bench/run

soak: programs ## check that no process of a long run grows: SOAK_GROUPS (50,000) groups
	@BUILD=$(BUILD) bash tests/bench/soak.sh

rank-demo: programs $(EMULATED) ## train the demo's model with 1 to 8 ranks, on the CPU and on the emulator: the same checkpoint to the byte
	@BUILD=$(BUILD) bash tests/bench/rank-demo.sh
