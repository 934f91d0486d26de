# Fuzzing with clang's libFuzzer: a target is tests/fuzz/NAME.c, its seeds stand in tests/fuzz/seeds/NAME/. The whole
# library is built again in build-fuzz with the address and undefined sanitizers.
FUZZ_BUILD    := build-fuzz
FUZZ_SECONDS  ?= 600
SMOKE_SECONDS ?= 1
FUZZ_NAMES    := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c))
FUZZ_FLAGS    := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FUZZ_MAKE      = $(MAKE) --no-print-directory BUILD=$(FUZZ_BUILD) CC=clang OPTIMIZE="-O1 -g1" \
                 SANITIZE="$(FUZZ_FLAGS) -fsanitize=fuzzer-no-link"
FUZZ_OPTIONS  := -timeout=20 -rss_limit_mb=4096 -print_final_stats=0 -verbosity=0

.PHONY: fuzz-tools fuzz-targets fuzz-if-there
fuzz-tools:
	@tools/deps --install $(FUZZ_DEBIAN)

fuzz-targets: $(FUZZ_NAMES:%=$(BUILD)/fuzz/%)

$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(call say,LD)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(LIBRARY) $(LDLIBS)

$(BUILD)/fuzz/condition: $(BUILD)/tools/groups/condition.o
# The page of a run, which is asked without a server.
FUZZ_PAGE := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/view/*.c)) $(addprefix $(BUILD)/tools/,subcommand.o \
             deployment.o groups/condition.o eval/figures.o run/run_status.o run/watcher.o)
$(BUILD)/fuzz/view_address $(BUILD)/fuzz/view_files: $(FUZZ_PAGE)
$(BUILD)/fuzz/view_address $(BUILD)/fuzz/view_files: LDLIBS += -lmicrohttpd
$(BUILD)/fuzz/pipeline: $(addprefix $(BUILD)/tools/view/,run_files.o view_call.o)
$(BUILD)/fuzz/openai: $(BUILD)/tools/serve/openai.o $(BUILD)/tools/serve/chat.o

fuzz: fuzz-tools ## run libFuzzer on each parser for FUZZ_SECONDS (600)
	+@$(FUZZ_MAKE) -s fuzz-targets
	@tests/run-fuzz $(FUZZ_BUILD) $(FUZZ_SECONDS) "$(FUZZ_OPTIONS)" $(FUZZ_NAMES)

fuzz-smoke: fuzz-tools ## run every fuzz target on its seeds and for SMOKE_SECONDS (1)
	+@$(FUZZ_MAKE) -s fuzz-targets
	@tests/run-fuzz $(FUZZ_BUILD) $(SMOKE_SECONDS) "$(FUZZ_OPTIONS)" $(FUZZ_NAMES)

fuzz-if-there:
	+@if command -v clang >/dev/null; then $(MAKE) --no-print-directory fuzz-smoke; \
	 else echo "fuzzing left out: type: sudo apt-get install $(FUZZ_DEBIAN)"; fi
