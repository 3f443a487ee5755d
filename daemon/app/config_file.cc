#include "daemon/app/config_file.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMaxConfigBytes = 1u << 20;

}  // namespace

absl::StatusOr<std::string> ReadConfigFile(Files& files, const ConfigFile& file) {
  if (file.named.empty() && file.user) return std::string();
  auto text = ReadOperatorFile(files, file.path(), kMaxConfigBytes);
  if (CodeOf(text.status()) != ErrorCode::NOT_FOUND) return text;
  if (!file.named.empty()) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("--config: ", text.status().message()));
  }
  // A link that leads nowhere is there: defaults are not what its operator wants.
  CKPTD_ASSIGN_OR_RETURN(const bool exists, Exists(files, file.path()));
  if (exists) return text;
  return std::string();
}

}  // namespace ckptd
