// What a node told, in a file that outlives its SIGKILL: lines in a shared mapping, so that telling is no system call
// that a sweep would count, and never comes before what it tells.
#ifndef CKPTD_TESTS_SYSCALLS_ACK_FILE_H_
#define CKPTD_TESTS_SYSCALLS_ACK_FILE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "tests/crash/crash_ledger.h"

namespace ckptd::syscalls {

// How a life ended that nobody killed.
struct End {
  SnapshotId durable;
  int fds = 0;        // open at the end, beside those at the beginning
  std::string wrong;  // bytes that were given and never saved
};

class AckFile final : public crash::Witness {
 public:
  // Made; nothing is told yet.
  explicit AckFile(const std::string& path);
  ~AckFile() override;
  AckFile(const AckFile&) = delete;
  AckFile& operator=(const AckFile&) = delete;
  void Hear(const crash::Fact& fact) override;
  uint64_t HashOf(const std::string& name, absl::string_view bytes) override;
  void Tell(const End& end);

 private:
  void Append(const std::string& line);

  char* text_ = nullptr;
  size_t size_ = 0;
};

struct Told {
  crash::Promise promise;
  std::optional<End> end;
};
// What the file promises; more than what `before` did.
[[nodiscard]] Told ReadAcks(const std::string& path, crash::Promise before = {});

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_ACK_FILE_H_
