# The test suite once more under gcc's sanitizers, each in a build folder of its own.
# (Full debug information makes gcc spend many minutes on the unrolled kernels, so only line tables are kept.)
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
TSAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer

.PHONY: sanitize-thread
sanitize: ## unit, operation and end-to-end tests under the address and undefined sanitizers
	+@UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 \
	 $(MAKE) --no-print-directory -s BUILD=build-asan OPTIMIZE="-O1 -g1 -fno-var-tracking" SANITIZE="$(ASAN_FLAGS)" check

sanitize-thread: ## unit and operation tests under the thread sanitizer
	+@TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
	 $(MAKE) --no-print-directory -s BUILD=build-tsan OPTIMIZE="-O1 -g1 -fno-var-tracking" SANITIZE="$(TSAN_FLAGS)" unit ops
