#include "daemon/storage/durable_names.h"

#include <algorithm>

namespace ckptd {
namespace {

constexpr size_t kUsualPath = 200;

}  // namespace

DurableNames::DurableNames() : names_(kMaxDurableNames) {
  for (Name& name : names_) name.path.reserve(kUsualPath);
}

DurableNames::Name* DurableNames::Of(const std::string& path) {
  const auto found =
      std::find_if(names_.begin(), names_.end(), [&](const Name& name) { return name.used != 0 && name.path == path; });
  return found == names_.end() ? nullptr : &*found;
}

std::optional<uint64_t> DurableNames::Find(const std::string& path) {
  Name* name = Of(path);
  if (name == nullptr) return std::nullopt;
  name->used = ++uses_;
  return name->inode;
}

void DurableNames::Set(const std::string& path, uint64_t inode) {
  Name* name = Of(path);
  if (name == nullptr) {
    name = &*std::min_element(names_.begin(), names_.end(),
                              [](const Name& left, const Name& right) { return left.used < right.used; });
    name->path = path;
  }
  name->inode = inode;
  name->used = ++uses_;
}

void DurableNames::Forget(const std::string& path) {
  if (Name* name = Of(path)) name->used = 0;
}

}  // namespace ckptd
