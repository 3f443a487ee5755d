// A ctl file, open: mapped read-write by this agent, handed to trainers by a read-only descriptor.
//
// Only the agent's user can write or truncate it, so the mapping may be touched. One thread.
#ifndef CKPTD_DAEMON_REGION_CTL_FILE_H_
#define CKPTD_DAEMON_REGION_CTL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/os/mapping.h"
#include "daemon/region/superblock.h"
#include "proto/local/region.h"

namespace ckptd::region {

[[nodiscard]] std::string CtlFileName(uint32_t layout);

class CtlFile {
 public:
  // Made complete under a temporary name, with `file_ids` (one per slot) and every slot FREE, then linked: a crash
  // leaves a whole ctl file or none.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CtlFile>> Create(Files& files, const std::string& rank_dir,
                                                                       const CtlHead& head,
                                                                       std::span<const uint64_t> file_ids);
  // An existing file that ParseCtlHead accepted as `head`.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CtlFile>> Open(Files& files, const std::string& rank_dir,
                                                                     const CtlHead& head);

  [[nodiscard]] Grant& grant();
  [[nodiscard]] SlotState& slot(uint32_t slot);
  [[nodiscard]] std::span<std::byte> record(uint32_t slot);  // record_stride bytes
  [[nodiscard]] int read_fd() const { return readable_->fd(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] absl::Status Unlink();

 private:
  CtlFile(Files& files, std::string path, const CtlHead& head);

  Files& files_;
  const std::string path_;
  const Superblock block_;  // the private copy that bounds everything
  std::unique_ptr<File> readable_;
  Mapping mapping_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_CTL_FILE_H_
