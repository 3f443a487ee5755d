// The size of a simulated world, what goes wrong in it and how often, and which rules hold.
#ifndef CKPTD_TESTS_PROTOCOL_OPTIONS_H_
#define CKPTD_TESTS_PROTOCOL_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "daemon/job/machine.h"
#include "daemon/snapshot/machine.h"

namespace ckptd::sim {

struct Rules {
  snapshot::Rules snapshot;
  job::Rules job;
  bool copies_frozen = true;           // I9: holders give nothing up before the decision is known,
  bool orders_fenced = true;           // and obey no order of a lower attempt than they have seen
  bool parity_before_stays = true;     // I9: until the new one is complete
  bool pieces_of_known_groups = true;  // I9: which STATE makes
  bool kept_while_loading = true;      // I9: parity of another grouping, which somebody may rebuild from
};

// How often what happens, out of 10,000 steps.
struct Faults {
  int kill_trainer = 100;
  int stop_trainer = 100;
  int kill_agent = 80;
  int lose_node = 8;
  int move_rank_zero = 60;
  int rollback = 40;
  int change_layout = 50;
  int short_memory = 400;  // of 1000 changes of the layout: only after the old one has given its free slots up
  int hang_storage = 30;
  int restart_all = 80;
  int take_over = 60;        // everything restarts, rank 0 on another node
  int scatter = 20;          // everything restarts anywhere
  int membership = 0;        // an agent sees some members leave, or all of them come back
  int remove = 0;            // an operator deletes a step, sometimes under a run that lives
  int flush_errors = 30;     // of 1000
  int partition = 0;         // agents are on two sides, which do not hear each other, or only one the other
  int lose_coordinator = 0;  // its agent dies, or its node is lost
  int rot = 0;               // a part that is on the storage is damaged there
};

struct Options {
  uint64_t seed = 1;
  int nodes = 1;
  uint32_t ranks = 1;
  int lost_messages = 50;  // of 1000
  uint32_t keep_last = 1;
  size_t at_once = 64;        // job::Config
  uint32_t copies = 0;        // job::Config; 0 = agents keep nothing for each other
  uint32_t data = 0;          // with parity: groups of data + parity nodes, where there are so many
  uint32_t parity = 0;        // job::Config; instead of copies
  uint32_t slots = 2;         // of a layout
  int copy_rate = 150;        // of 1000 steps
  int refusals = 0;           // of 1000 orders of a copy are answered with a refusal
  int agent_back = 300;       // of 1000, every 64 steps
  int slow_ops = 20;          // of 1000 storage operations take long
  bool bad_parts = false;     // some parts are written wrong
  int read_errors = 0;        // of 1000 parts that are read back cannot be read
  bool older_agents = false;  // every other agent reads nothing back
  bool damage = false;        // readers find some slots damaged that are getting a fresh file
  bool cut_slots = false;     // some sealed slots are destroyed while their agent is down
  job::FlushPolicy flush;
  bool wait_for_slot = false;  // back_pressure wait
  bool through_wire = false;   // messages are serialised and parsed
  bool strikes = false;        // agents and nodes die at the worst moments (strikes.cc)
  Faults faults;
  Rules rules;
  bool trace = false;
};

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_OPTIONS_H_
