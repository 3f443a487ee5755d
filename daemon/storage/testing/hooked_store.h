// A Store that asks a function before each call that carries bytes or gives a name: to act just then, to count, or to
// fail the call with what the function says.
#ifndef CKPTD_DAEMON_STORAGE_TESTING_HOOKED_STORE_H_
#define CKPTD_DAEMON_STORAGE_TESTING_HOOKED_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/storage/testing/store_around.h"

namespace ckptd {

class HookedStore final : public StoreAround {
 public:
  // `call`: "create", "open", "write", "finish" or "read".
  using Hook = std::function<absl::Status(absl::string_view call, const std::string& name)>;
  HookedStore(Store& inner, Hook hook) : StoreAround(inner), hook_(std::move(hook)) {}

  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    CKPTD_RETURN_IF_ERROR(hook_("create", name));
    return inner_.CreateExclusive(name, bytes);
  }
  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    CKPTD_RETURN_IF_ERROR(hook_("open", name));
    CKPTD_ASSIGN_OR_RETURN(auto writer, inner_.OpenForWrite(name, size));
    return std::make_unique<Writer>(std::move(writer), hook_, name);
  }
  absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string& name) override {
    CKPTD_RETURN_IF_ERROR(hook_("read", name));
    return inner_.OpenForRead(name);
  }

 private:
  class Writer final : public WriterAround {
   public:
    Writer(std::unique_ptr<PartWriter> inner, const Hook& hook, std::string name)
        : WriterAround(std::move(inner)), hook_(hook), name_(std::move(name)) {}
    absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override {
      CKPTD_RETURN_IF_ERROR(hook_("write", name_));
      return inner_->Write(offset, bytes);
    }
    absl::Status Finish() override {
      CKPTD_RETURN_IF_ERROR(hook_("finish", name_));
      return inner_->Finish();
    }

   private:
    const Hook& hook_;
    const std::string name_;
  };

  const Hook hook_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_TESTING_HOOKED_STORE_H_
