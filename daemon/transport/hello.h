// What two agents say of themselves before anything else, and whether they fit (proto/ckptd/v1/peer.proto). Whether a
// name is proved by a certificate, and its generation up to date, others say (identity.h, the membership).
#ifndef CKPTD_DAEMON_TRANSPORT_HELLO_H_
#define CKPTD_DAEMON_TRANSPORT_HELLO_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ckptd/v1/link.pb.h"

namespace ckptd::transport {

// What this agent speaks. Grows when a message's meaning changes; new fields alone do not.
inline constexpr uint32_t kOldestProtocol = 1;
inline constexpr uint32_t kNewestProtocol = 1;

inline constexpr size_t kMaxPeerNameBytes = 253;
inline constexpr size_t kMaxDomains = 8;
inline constexpr size_t kMaxDomainBytes = 63;  // of a key, of a value

// What fails together has the same value: {"rack": "r3"}.
using Domains = std::map<std::string, std::string>;

// One agent, as it says it.
struct Card {
  std::string cluster;
  std::string name;          // in the membership
  std::string agent;         // in the job protocol
  uint64_t generation = 0;   // from 1
  uint64_t incarnation = 0;  // random for each start, never 0
  Domains domains{};         // only the caller says them
  bool operator==(const Card&) const = default;
};

[[nodiscard]] v1::HelloRequest MakeHello(const Card& self, const std::string& to);
[[nodiscard]] v1::HelloResponse MakeAnswer(const Card& self, uint32_t protocol);

struct Greeting {
  Card peer;
  uint32_t protocol = 0;
};

// At the agent that was called. Errors: PROTOCOL (a field is empty or too long), NEWER_VERSION, REFUSED (another
// cluster, or somebody else was meant), each with what to correct.
[[nodiscard]] absl::StatusOr<Greeting> CheckHello(const Card& self, const v1::HelloRequest& hello);
// At the agent that called `to`. The same errors.
[[nodiscard]] absl::StatusOr<Greeting> CheckAnswer(const Card& self, const std::string& to,
                                                   const v1::HelloResponse& answer);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_HELLO_H_
