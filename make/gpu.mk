# Measurements on a GPU: never part of a test.
GPU_BENCH := $(BUILD)/tests/gpu/bench

$(BUILD)/tests/gpu/%: $(BUILD)/tests/gpu/%.o $(LIBRARY)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: gpu-bench
gpu-bench: $(GPU_BENCH) $(CUDA_PLUGIN) ## measure operations that a GPU's memory limits; lines of JSON in build/gpu-bench.json
	@CARAVAN_LIB=$(BUILD)/lib $(GPU_BENCH) --device cuda > $(BUILD)/gpu-bench.json

e2e: $(GPU_BENCH) # its smoke test is tests/e2e/gpu-bench.sh
