# Layout, chosen static checks, include layers and circles, naming rules, a comment on every public prototype, the length
# of the ways that ARCHITECTURE.md follows.
# In an unpacked archive git lists nothing.
FORMATTED = $(or $(shell git ls-files '*.c' '*.h' '*.cu' '*.cpp' 2>/dev/null),$(shell find $(wildcard */) -name 'build*' -prune -o -name '*.[ch]' -print -o -name '*.cu' -print -o -name '*.cpp' -print))
# Each version of clang-format lays out some lines differently.
LAYOUT_VERSION := 14

.PHONY: lint lint-if-there
lint: compile_commands.json $(LIBRARY) ## run the static checks: clang-format, clang-tidy, layers, comments, names, symbols
	@if clang-format --version | grep -q 'version $(LAYOUT_VERSION)\.'; then clang-format --dry-run -Werror $(FORMATTED); \
	 else echo "layout left out: it is that of clang-format $(LAYOUT_VERSION), and this is $$(clang-format --version)"; fi
	python3 tests/lint/layers .
	python3 tests/lint/names .
	python3 tests/lint/walks .
	python3 tests/lint/page .
	@tests/lint/symbols $(LIBRARY)
	@tests/emulate/mutations --check
	@printf '%s\n' $(filter %.c,$(FORMATTED)) | xargs -P 2 -n 4 clang-tidy --quiet -p . 2>/dev/null

# A user's machine may lack the checkers; CI has them. `make test` builds beside it: two makes would write the library, and the
# second one would read files of dependencies that are being written.
lint-if-there: $(LIBRARY)
	@for tool in clang-format clang-tidy python3; do command -v $$tool >/dev/null || { \
	     echo "lint left out: type: sudo apt-get install $(LINT_DEBIAN)"; exit 0; }; done; \
	 $(MAKE) --no-print-directory lint DEPENDENCIES=

format: ## lay out all C files
	clang-format -i $(FORMATTED)

compile_commands.json: ## write it for editors and clang-tidy
	@tools/compile-commands "$(subst ",\",$(CC) $(CPPFLAGS) $(EMULATED_FLAGS) $(CFLAGS))" $(LIB_SOURCES) $(CUDA_HOST) $(TOOL_SOURCES) $(wildcard stages/*/*.c tests/*/*.c) > $@
