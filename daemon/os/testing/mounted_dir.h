// A folder as Kubernetes mounts a ConfigMap or a Secret: each name in it is a link to ..data/NAME, and ..data a link to
// the folder that has the files, which is replaced in one step.
#ifndef CKPTD_DAEMON_OS_TESTING_MOUNTED_DIR_H_
#define CKPTD_DAEMON_OS_TESTING_MOUNTED_DIR_H_

#include <filesystem>
#include <string>
#include <vector>

#include "daemon/os/testing/temp_dir.h"

namespace ckptd {

class MountedDir {
 public:
  MountedDir(const std::vector<std::string>& names, const std::string& folder) {
    for (const std::string& name : names) std::filesystem::create_symlink("..data/" + name, PathOf(name));
    Switch(folder);
  }
  void Switch(const std::string& folder) const {
    std::filesystem::create_symlink(folder, PathOf("..next"));
    std::filesystem::rename(PathOf("..next"), PathOf("..data"));
  }

  [[nodiscard]] const std::string& path() const { return dir_.path(); }
  [[nodiscard]] std::string PathOf(const std::string& name) const { return dir_.path() + "/" + name; }

 private:
  TempDir dir_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_MOUNTED_DIR_H_
