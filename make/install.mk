# Installing: programs, manual pages, completion, the files that users copy, and the documentation.
DATADIR    ?= $(PREFIX)/share
ZSHDIR     ?= $(DATADIR)/zsh/site-functions
SHARE      := $(BUILD)/share
MAN_PAGES  := $(SHARE)/man/man1/caravan.1 $(STAGES:%=$(SHARE)/man/man1/caravan-%.1)
COMPLETION := $(SHARE)/bash-completion/completions/caravan
COMPLETION_ZSH  := $(SHARE)/zsh/_caravan
COMPLETION_FISH := $(SHARE)/fish/caravan.fish
PAGES      := $(wildcard *.md) LICENSE
EXAMPLES   := $(filter-out %.pyc %__pycache__,$(wildcard pipelines/* pipelines/*/* pipelines/*/*/*))

$(SHARE)/man/man1/%.1: $(BUILD)/bin/caravan
	@mkdir -p $(@D)
	$(call say,GEN)$< reference --man $* > $@

$(COMPLETION):      SHELL_NAME := bash
$(COMPLETION_ZSH):  SHELL_NAME := zsh
$(COMPLETION_FISH): SHELL_NAME := fish
$(COMPLETION) $(COMPLETION_ZSH) $(COMPLETION_FISH): $(BUILD)/bin/caravan
	@mkdir -p $(@D)
	$(call say,GEN)$< reference --completion $(SHELL_NAME) > $@

# $(call place,MODE,FILES,DIRECTORY)
place = install -d "$(DESTDIR)$(3)" && install -m $(1) $(2) "$(DESTDIR)$(3)/"

.PHONY: install uninstall
install: all $(MAN_PAGES) $(COMPLETION) $(COMPLETION_ZSH) $(COMPLETION_FISH) ## install programs, manual pages, completion and pipelines into PREFIX (/usr/local), the plug-in for GPUs into LIBDIR (PREFIX/lib)
	$(call say,INST)$(call place,755,$(PROGRAMS),$(PREFIX)/bin)
	$(if $(CUDA_PLUGIN),@$(call place,755,$(CUDA_PLUGIN),$(LIBDIR)))
	@$(call place,644,$(MAN_PAGES),$(DATADIR)/man/man1)
	@$(call place,644,$(COMPLETION),$(DATADIR)/bash-completion/completions)
	@$(call place,644,$(COMPLETION_ZSH),$(ZSHDIR))
	@$(call place,644,$(COMPLETION_FISH),$(DATADIR)/fish/vendor_completions.d)
	@for stage in $(STAGES); do \
	     ln -sf caravan "$(DESTDIR)$(DATADIR)/bash-completion/completions/caravan-$$stage"; \
	     ln -sf caravan.fish "$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/caravan-$$stage.fish"; done
	@$(call place,644,$(PAGES),$(DATADIR)/doc/caravan)
	@for file in $(EXAMPLES); do [ -d $$file ] || install -D -p -m $$([ -x $$file ] && echo 755 || echo 644) $$file "$(DESTDIR)$(DATADIR)/caravan/$$file" || exit 1; done

uninstall: ## remove what make install has put into PREFIX and LIBDIR
	$(call say,RM)rm -f $(patsubst $(BUILD)/%,"$(DESTDIR)$(PREFIX)/%",$(PROGRAMS)) "$(DESTDIR)$(LIBDIR)/libcaravan-cuda.so"
	@rm -f $(patsubst $(SHARE)/%,"$(DESTDIR)$(DATADIR)/%",$(MAN_PAGES) $(COMPLETION) $(STAGES:%=$(COMPLETION)-%) \
	     $(SHARE)/fish/vendor_completions.d/caravan.fish $(STAGES:%=$(SHARE)/fish/vendor_completions.d/caravan-%.fish)) \
	     "$(DESTDIR)$(ZSHDIR)/_caravan"
	@rm -rf "$(DESTDIR)$(DATADIR)/caravan" "$(DESTDIR)$(DATADIR)/doc/caravan"

# Without the plug-in for GPUs, unless CUDA=1 is given.
PACKAGE_ROOT := $(BUILD)/deb/root
.PHONY: deb
deb: ## make build/caravan_VERSION_ARCHITECTURE.deb for this release of Debian, without the plug-in for GPUs unless CUDA=1
	@tools/deps --install dpkg-dev
	@rm -rf $(PACKAGE_ROOT)
	+@$(MAKE) --no-print-directory -s CUDA=$(or $(CUDA),0) PREFIX=/usr LIBDIR=/usr/lib ZSHDIR=/usr/share/zsh/vendor-completions DESTDIR="$(abspath $(PACKAGE_ROOT))" install
	@tools/make-deb "$(abspath $(PACKAGE_ROOT))" $(VERSION) "$(abspath $(BUILD))/caravan_$(VERSION)_$$(dpkg --print-architecture).deb"
