// wrong_types.h - a JSON file damaged in every way that is still JSON.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace octavo::testing {

/// Puts a value of each other JSON type into every place of `tree` in turn (of long lists and objects into
/// the first four), calls `check` with that place, ".model.dropout = array", and puts the value back.
inline void for_each_wrong_type(nlohmann::ordered_json& tree,
                                const std::function<void(const std::string& place)>& check) {
  using Json = nlohmann::ordered_json;
  const Json others[] = {nullptr,
                         true,
                         -7,
                         18446744073709551615u,
                         1e300,
                         "odd\n\"text\"",
                         Json::array({Json::array(), "\u0001"}),
                         {{"key\n", "value"}}};
  const std::function<void(Json&, const std::string&)> visit = [&](Json& node, const std::string& path) {
    const Json kept = node;
    for (const Json& other : others) {
      if (other.type() == kept.type() && !kept.is_number()) continue;
      node = other;
      check(path + " = " + other.type_name());
      node = kept;
    }
    std::size_t n = 0;
    if (node.is_structured())
      for (auto& [key, child] : node.items()) {
        if (n++ == 4 && node.size() > 40) break;
        visit(child, path + "." + key);
      }
  };
  visit(tree, "");
}

}  // namespace octavo::testing
