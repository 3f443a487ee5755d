// This process's part in one collective restore: from JOIN to GO. Guarded by the handle's mutex.
#ifndef CKPTD_CLIENT_SRC_CLAIM_H_
#define CKPTD_CLIENT_SRC_CLAIM_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "proto/local/messages.h"

namespace ckptd {

// What an agent says of the steps that it passed over, before the LOAD of `attempt`. One that is older says nothing.
struct WhySkipped {
  uint64_t attempt = 0;
  std::map<std::pair<uint64_t, uint64_t>, std::string> sentences;  // by attempt and step; at most kMaxSkipped
};

// An agent that systemd restarts is met; one that does not exist is told soon.
inline constexpr uint64_t kDefaultConnectNs = 10'000'000'000;

struct Claim {
  enum class Stage : uint8_t {
    kNone,      // nobody asked yet
    kJoining,   // JOIN is to be sent, or waits for LOAD
    kOffered,   // LOAD is here, the trainer loads
    kReported,  // LOADED or FAILED is to be sent, or waits for GO
    kRunning,   // GO
    kFailed,    // `code` and `sentence`
  };

  Stage stage = Stage::kNone;
  bool implicit = false;  // by ckpt_register of a process that did not restore; the session thread answers LOAD itself
  uint64_t since_ns = 0;  // when it was made
  uint64_t ticket = 0;
  Want want = Want::kNewest;
  uint64_t want_step = 0;
  uint64_t timeout_ns = 0;  // as wished; 0: nobody waits
  uint64_t deadline_ns = UINT64_MAX;
  uint64_t connect_deadline_ns = UINT64_MAX;  // counts until `answered`
  uint64_t move_ns = kDefaultConnectNs;       // so long an agent may be away before another one is asked
  bool answered = false;                      // an agent greeted while this claim waited
  uint64_t attempt = 0;                       // of the newest LOAD
  uint64_t start_step = 0;                    // of GO

  LoadMessage load = {};  // the newest; its descriptors wait here until the trainer takes them
  UniqueFd slot_file;
  UniqueFd ctl_file;
  bool untaken = false;
  WhySkipped why_skipped;

  int32_t result = 0;  // number of errors.def, 0 = loaded
  char reason[256] = {};
  uint64_t loaded_bytes = 0;

  int32_t code = 0;
  std::string sentence;
};

// An agent has said what is to be loaded: what this process trains is that agent's.
[[nodiscard]] bool IsAnswered(const Claim& claim);

// The agent says that what was decided goes on to be loaded.
void KeepPatience(Claim& claim, uint64_t patience_ms);

// The agent is gone, and nobody says so any more: it has the timeout to come back.
void LosePatience(Claim& claim);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_CLAIM_H_
