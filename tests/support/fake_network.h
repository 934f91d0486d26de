// A network in one thread and with a clock of its own, as transports (shared/wire/transport.h) for tests: the wires of
// any number of processes talk over it, and the test decides when time passes and what breaks. Everything random
// (delays, which messages a broken connection loses) follows from the seed, so a test that fails repeats itself.
//
// `receive` never blocks: when nothing can be delivered now it returns at once. A test polls its wires in turn, and
// advances the clock when none has an event.
//
// Like ZeroMQ over TCP: a connection delivers in order and once, and loses messages only when it breaks, those at its
// end. A link opens again by itself after its connection was closed or refused. While two processes are cut off from
// each other, their connections stay, and go on at some time after the cut has ended; new ones open at once then.
//
// Ownership: a process's transport belongs to the wire that was opened with it, also after its death. All wires are
// closed before the network is freed. A failure of the test itself (memory) ends the program.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/wire/transport.h"

struct fake_network;

// Makes a network in which messages and connections take up to 20 ms. Free it with fake_network_free.
struct fake_network *fake_network_new(uint64_t seed);

// Frees a network without processes; sets *network to NULL.
void fake_network_free(struct fake_network **network);

// Adds a process. Its clock has an offset of its own.
struct transport *fake_network_add_process(struct fake_network *network);

// Returns the network's clock, in milliseconds.
int64_t fake_network_now(const struct fake_network *network);

// Advances the clock to the next moment at which something can happen, but by `max_ms` at most and 1 ms at least.
void fake_network_advance(struct fake_network *network, int64_t max_ms);

// Returns a uniform integer in [0, bound) that follows from the seed: for the test's own choices.
uint64_t fake_network_random(struct fake_network *network, uint64_t bound);

// Sets how many milliseconds a message takes at most.
void fake_network_set_delay(struct fake_network *network, int64_t max_ms);

// Returns how many messages were sent in all.
int64_t fake_network_sent(const struct fake_network *network);

// Returns how many events the transports have received in all.
int64_t fake_network_received(const struct fake_network *network);

// Kills a process: its connections close and its endpoints are free. It may still be used, but reaches nobody.
void fake_network_kill(struct transport *process);

// Takes a process away as a power cut takes a machine: its peers are not told.
void fake_network_vanish(struct transport *process);

// Stops a process or lets it go on: meanwhile it gets nothing, and connections to it do not open.
void fake_network_pause(struct transport *process, bool paused);

// Breaks the connections between two processes. Messages on their way may be lost.
void fake_network_break(struct transport *a, struct transport *b);

// Cuts two processes off from each other, or ends that.
void fake_network_cut(struct transport *a, struct transport *b, bool cut);
