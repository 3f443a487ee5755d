// The rules that a transfer keeps, by name, so that tests can switch each off and see that it is missed. Whoever is not
// a test uses kAllRules.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_RULES_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_RULES_H_

#include <cstdint>

namespace ckptd::transport {

enum class Rule : uint32_t {
  kOnlyThisConnection = 1 << 0,  // what belongs to an earlier connection does not count
  kKeepWindow = 1 << 1,          // no more bytes under way than granted
  kResendWhatWasCut = 1 << 2,    // in flight when the connection ended: sent again
  kBoundAttempts = 1 << 3,       // a chunk that is damaged again and again ends the transfer
  kFollowWelcome = 1 << 4,       // what the receiver has is not sent again
  kEndSilence = 1 << 5,          // an answer that is owed too long ends the connection
  kOrderWindows = 1 << 6,        // an older window does not replace a newer one
  kCompareChecksum = 1 << 7,     // a chunk counts only when it matches
  kOneWriter = 1 << 8,           // a chunk has one writer at a time, and none once it counts
  kWaitForWriters = 1 << 9,      // no new connection while the old one's writers are at work
  kKeepDeadline = 1 << 10,       // the transfer ends at its deadline
};
inline constexpr uint32_t kRuleCount = 11;

class Rules {
 public:
  constexpr Rules() = default;
  [[nodiscard]] static constexpr Rules AllBut(Rule rule) { return Rules(~static_cast<uint32_t>(rule)); }
  [[nodiscard]] constexpr bool Keeps(Rule rule) const { return (bits_ & static_cast<uint32_t>(rule)) != 0; }

 private:
  explicit constexpr Rules(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = ~uint32_t{0};
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_RULES_H_
