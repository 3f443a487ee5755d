// The arguments behind a command's name: flags that the command declares, and the rest. Pure.
#ifndef CKPTD_TOOLS_CKPTCTL_ARGS_H_
#define CKPTD_TOOLS_CKPTCTL_ARGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "proto/ckptd/v1/admin.pb.h"

namespace ckptd {

struct Flag {
  std::string name;   // "--to"
  std::string value;  // what it takes, as help shows it: "DIR"; empty = nothing
  std::string help;
};

class Args {
 public:
  // `--to DIR`, `--to=DIR`, `-w`; what stands behind `--` is no flag. INVALID_ARGUMENT naming the nearest flag.
  [[nodiscard]] static absl::StatusOr<Args> Parse(const std::vector<Flag>& flags,
                                                  const std::vector<std::string>& words);

  [[nodiscard]] bool Has(const std::string& flag) const { return flags_.count(flag) != 0; }
  [[nodiscard]] std::string Get(const std::string& flag) const;  // "" when absent
  // Absent, or INVALID_ARGUMENT.
  [[nodiscard]] absl::StatusOr<std::optional<Rank>> GetRank(const std::string& flag) const;
  [[nodiscard]] absl::StatusOr<Nanos> GetDuration(const std::string& flag, Nanos otherwise) const;
  [[nodiscard]] absl::StatusOr<std::optional<uint64_t>> GetNumber(const std::string& flag, uint64_t least,
                                                                  uint64_t most) const;
  // "75GiB", "4096".
  [[nodiscard]] absl::StatusOr<std::optional<uint64_t>> GetBytes(const std::string& flag, uint64_t least,
                                                                 uint64_t most) const;
  // "table" or "json" of `-o`.
  [[nodiscard]] absl::StatusOr<bool> Json() const;

  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }
  [[nodiscard]] std::string word(size_t index) const { return index < words_.size() ? words_[index] : std::string(); }

 private:
  std::map<std::string, std::string> flags_;
  std::vector<std::string> words_;
};

// "JOB" or "JOB@STEP", the step also as STEP.aATTEMPT for one that a roll-back left behind.
[[nodiscard]] absl::StatusOr<v1::Target> ParseTarget(const std::string& text);

// Jobs have no slash in their names: what has one, or is "." or "..", or ends like a file of ours, is a path.
[[nodiscard]] bool IsPath(absl::string_view word);

// The candidate that is most like `word`, when one is like it at all.
[[nodiscard]] std::optional<std::string> Nearest(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_ARGS_H_
