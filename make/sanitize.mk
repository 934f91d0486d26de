# The test suite once more under gcc's sanitizers, each in a build directory of its own.
# gcc gives some false warnings about instrumented code, so warnings are not errors here; the plain build shows the
# real ones.
# Full debug information makes gcc spend many minutes on the unrolled kernels, so only line tables are kept.
# With -O1 alone gcc leaves out vzeroupper, and on Intel processors all SSE code is several times slower after a kernel.
SANITIZE_OPTIMIZE := -O1 -fexpensive-optimizations -g1 -fno-var-tracking
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
TSAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer

# Kernels compute with many small values on the stack. Marking the scope of each, and checking the pointers to it apart from
# what is read through them, takes three quarters of the compiler's time. No kernel keeps a pointer to such a value. The
# fuzzers' parsers call no kernel.
KERNEL_ASAN := -fno-sanitize-address-use-after-scope -fno-sanitize=null,object-size,pointer-overflow
ifneq ($(findstring fuzzer,$(SANITIZE)),)
$(BUILD)/kernels/%: override SANITIZE :=
else ifneq ($(findstring address,$(SANITIZE)),)
$(BUILD)/kernels/% $(BUILD)/emulated/%: override SANITIZE += $(KERNEL_ASAN)
endif

# The vector loops compute all products where oneDNN does not, and instrumented they take most of the time: they are not. The
# harness runs the same source as plain C, which is instrumented, and in the plain build with guard pages.
$(BUILD)/kernels/cpu/simd_avx2.o $(BUILD)/kernels/cpu/simd_avx512.o: override SANITIZE :=
# Nor is what the harness compares operations with: instrumented, it takes longer than they do. The harness itself has one
# thread.
$(filter-out %/main.o $(if $(findstring thread,$(SANITIZE)),,%/harness.o),$(OPS_SOURCES:%.c=$(BUILD)/%.o)): override SANITIZE :=

# A report of a stage in a pipeline would only reach the stage's log, and the supervisor would restart the stage. So reports
# are written to files, named after program and process, and the target fails if there is one. One may be empty: its process
# was killed before it wrote.
REPORTED = { status=$$?; ls $(1)/report.* >/dev/null 2>&1 && head -v -n 60 $(1)/report.* && exit 1; exit $$status; }

# Left out: models whose memory has guard pages in the plain build (unit/model_bits), and pieces of files by the thousand,
# which unit/ranks_training writes and reads, too; what runs the programs of other tests once more and trains or draws for
# long (every method, one training after another, the miniature; several machines, ranks and kills, which storm.sh has, too;
# the plans of the shipped files, whose parser is fuzzed; runs on the emulator and of adapters, whose operations, models and
# lent weights unit tests and the harness go through), the page's own test, which has no program of caravan's, and
# installation, which copies what others test and packs instrumented programs for most of a minute.
ASAN_WITHOUT := $(addprefix unit/,file_pieces model_bits) \
                $(addprefix e2e/,ablation adapters draw emulated faults install killed-source machines methods pipelines rank-gpus rank-machines ranks second-training sharing view-page)

.PHONY: sanitize sanitize-thread
sanitize: ## run unit, operation and end-to-end tests under the address and undefined sanitizers
	@rm -f build-asan/report.*; mkdir -p build-asan
	+@UBSAN_OPTIONS="print_stacktrace=1:log_exe_name=1:log_path='$(CURDIR)/build-asan/report'" \
	 ASAN_OPTIONS="detect_stack_use_after_return=1:log_exe_name=1:log_path='$(CURDIR)/build-asan/report'" \
	 LSAN_OPTIONS="suppressions='$(CURDIR)/tests/support/libzmq-leaks':print_suppressions=0" \
	 $(MAKE) --no-print-directory -s BUILD=build-asan OPTIMIZE="$(SANITIZE_OPTIMIZE)" WERROR= SANITIZE="$(ASAN_FLAGS)" WITHOUT="$(ASAN_WITHOUT) $(WITHOUT)" check; \
	 $(call REPORTED,build-asan)

# The emulator runs a block's threads on one thread of the CPU, where the thread sanitizer finds nothing and takes minutes.
# Nor does it find anything in tests of one thread, of threads that share nothing but what unit/ranks tests, of the sampler,
# the scorer and the trainer where the harness, unit/generator_steps, model_losses, model_training and chain.sh have their
# threads, of text, files, tables and figures, in processes of one thread, in programs of Python, and in scripts that run the
# same pipelines as chain.sh, checkpoints.sh, clean-stop.sh, machines.sh and storm.sh.
TSAN_WITHOUT := $(addprefix unit/,file_pieces json model_bits model_parity ranks_training rope_angles simulation tokenizer) \
                $(addprefix e2e/,ablation active-runs adapters agreement ask bad-input benchmarks chat-judge check compare damaged data devices draw ends eval evaluation faults \
                  generated-answers image-benchmarks init install killed-source likelihood loss max-steps media-folder methods not-finite pipelines plug-in programs \
                  python-stage rank-machines ranks reference replay resumed-settings score-and-judge second-training serve source-and-reward supervised supervisor view view-page)

sanitize-thread: ## run those of these tests that have threads under the thread sanitizer
	@rm -f build-tsan/report.*; mkdir -p build-tsan
	+@TSAN_OPTIONS="halt_on_error=1:ignore_noninstrumented_modules=1:log_exe_name=1:log_path='$(CURDIR)/build-tsan/report'" \
	 $(MAKE) --no-print-directory -s BUILD=build-tsan OPTIMIZE="$(SANITIZE_OPTIMIZE)" WERROR= SANITIZE="$(TSAN_FLAGS)" DEVICE=cpu WITHOUT="$(TSAN_WITHOUT) $(WITHOUT)" check; \
	 $(call REPORTED,build-tsan)
