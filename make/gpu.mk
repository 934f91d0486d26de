# Measurements and checks on a GPU: never part of a test. A machine with a GPU may lack a compiler and every library:
# build/gpu.tar.gz has all that they need.
GPU_BENCH         := $(BUILD)/tests/gpu/bench
GPU_BENCH_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/gpu/bench*.c))

$(GPU_BENCH): $(GPU_BENCH_OBJECTS) $(LIBRARY)
	$(call say,LD)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# ---- the archive ----

# Programs that find their libraries beside themselves. None is linked with FFmpeg: the frames of
# the archive's clips are in its store.
PACK          := $(BUILD)/gpu
PACK_CASES    := model_parity model_bits model_lending shared_buffers
PACK_TESTS    := harness bench questions model_bench $(PACK_CASES)
PACK_PROGRAMS := $(patsubst $(BUILD)/bin/%,$(PACK)/bin/%,$(PROGRAMS)) $(PACK_TESTS:%=$(PACK)/bin/%)
PACK_LINK      = $(call say,LD)$(CC) $(LDFLAGS) -s -Wl,--as-needed -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/../lib' -o $@ $^ $(LDLIBS)

# pack_rule PROGRAM,OBJECTS,LIBRARIES
define pack_rule
$(PACK)/bin/$(1): $(2) $(LIBRARY)
	@mkdir -p $$(@D)
	$$(PACK_LINK) $(3)
endef
$(foreach stage,$(STAGES),$(eval $(call pack_rule,caravan-$(stage),$(patsubst %.c,$(BUILD)/%.o,$(wildcard stages/$(stage)/*.c)))))
$(foreach case,$(PACK_CASES),$(eval $(call pack_rule,$(case),$(BUILD)/tests/unit/$(case).o $(addprefix $(BUILD)/tests/support/,guarded.o unit.o),-lcmocka)))
$(PACK)/bin/model_bits: LDFLAGS += -Wl,--wrap=backend_open
$(eval $(call pack_rule,bench,$(GPU_BENCH_OBJECTS)))
$(eval $(call pack_rule,model_bench,$(BUILD)/tests/bench/model_bench.o))
$(eval $(call pack_rule,questions,$(BUILD)/tests/gpu/questions.o))
$(eval $(call pack_rule,caravan,$(TOOL_SOURCES:%.c=$(BUILD)/%.o),-lmicrohttpd))
$(eval $(call pack_rule,harness,$(OPS_SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/tests/support/guarded.o,-lcmocka))

.PHONY: gpu-pack gpu-pack-programs gpu-check gpu-bench
gpu-pack-programs: $(PACK_PROGRAMS) $(EMULATED)

gpu-pack: programs gpu-pack-programs $(CUDA_PLUGIN) ## make build/gpu.tar.gz, which checks and measures a GPU without a compiler there
	@test -n "$(CUDA_PLUGIN)" || { echo "gpu-pack needs nvcc and not CUDA=0" >&2; exit 69; }
	@BIN=$(BUILD)/bin tools/gpu-pack $(PACK) $(BUILD)/gpu.tar.gz $(EMULATED) $(CUDA_PLUGIN)

gpu-check: gpu-pack ## check this machine's GPU: what only a GPU can answer, operations, model, a pipeline; into build/gpu-check
	$(PACK)/check --out $(BUILD)/gpu-check

gpu-bench: gpu-pack ## measure operations, and a group with a model of 3B, on this machine's GPU; into build/gpu-bench
	$(PACK)/check --out $(BUILD)/gpu-bench bench bench-own peer model rollout score train

# For tests/e2e/gpu-bench.sh and gpu-check.sh.
e2e: $(GPU_BENCH) $(if $(SANITIZE),,gpu-pack-programs)
