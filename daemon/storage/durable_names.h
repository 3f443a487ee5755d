// Directories whose names are known to be durable, each with the inode that had its name then: the ones that were used
// last. They are asked for with every file that is published, so their memory is taken once.
#ifndef CKPTD_DAEMON_STORAGE_DURABLE_NAMES_H_
#define CKPTD_DAEMON_STORAGE_DURABLE_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckptd {

inline constexpr size_t kMaxDurableNames = 128;

class DurableNames {
 public:
  DurableNames();

  // The inode of a name that is known. It counts as used.
  [[nodiscard]] std::optional<uint64_t> Find(const std::string& path);
  void Set(const std::string& path, uint64_t inode);
  void Forget(const std::string& path);

 private:
  struct Name {
    std::string path;
    uint64_t inode = 0;
    uint64_t used = 0;  // 0 = none is known here
  };

  Name* Of(const std::string& path);

  std::vector<Name> names_;
  uint64_t uses_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_DURABLE_NAMES_H_
