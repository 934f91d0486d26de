// The settings belong to the terminal and outlive the process, so everything that ends or stops it restores them first.
#include "tools/run/keyboard.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

static struct termios keyboard_before, keyboard_ours;
static volatile sig_atomic_t keyboard_is_open;

// Besides SIGINT and SIGTERM, which signals_open handles.
static const int keyboard_signals[] = {SIGTSTP, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// Whether tcsetattr would be allowed: a process in the background would be stopped by it.
static bool keyboard_in_foreground(void) {
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void keyboard_on_signal(int number);

static void keyboard_handle(int number) {
    struct sigaction action = {.sa_handler = keyboard_on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(number, &action, NULL);
}

// Restores the terminal and lets the signal do what it does without a handler. After SIGTSTP the program comes back
// here when it goes on.
static void keyboard_on_signal(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    if (keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_before);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); // it takes effect here
    if (number != SIGTSTP) return;
    keyboard_handle(number);
    if (keyboard_is_open && keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_ours);
}

bool keyboard_open(void) {
    if (!isatty(STDIN_FILENO) || !keyboard_in_foreground() || tcgetattr(STDIN_FILENO, &keyboard_before)) return false;
    keyboard_ours = keyboard_before;
    keyboard_ours.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keyboard_ours.c_cc[VMIN] = keyboard_ours.c_cc[VTIME] = 0; // a read does not wait
    keyboard_is_open = 1;
    atexit(keyboard_close);
    for (size_t i = 0; i < sizeof keyboard_signals / sizeof *keyboard_signals; i++) {
        struct sigaction before;
        if (!sigaction(keyboard_signals[i], NULL, &before) && before.sa_handler != SIG_IGN)
            keyboard_handle(keyboard_signals[i]);
    }
    return !tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_ours);
}

char keyboard_read(void) {
    char key;
    return keyboard_is_open && keyboard_in_foreground() && read(STDIN_FILENO, &key, 1) == 1 ? key : 0;
}

void keyboard_close(void) {
    if (!keyboard_is_open) return;
    keyboard_is_open = 0;
    if (keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_before);
}
