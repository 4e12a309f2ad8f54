// TensorBoard imports this module into the tab's frame and calls `render()`.
import { render as renderInto } from "preact";
import { CAUSE_STYLES } from "./charts/colors";
import { isExported } from "./state/exported";
import { followLink, followReload, followTheme } from "./state/host";
import { loadCaptures, openLink, reload } from "./state/store";
import style from "./style.css";
import { App } from "./app";

export function render(): void {
  document.documentElement.lang = "en";
  document.title = "Perf Advisor";
  const sheet = document.createElement("style");
  sheet.textContent = CAUSE_STYLES + style;
  document.head.append(sheet);
  followTheme((theme) => {
    document.documentElement.dataset.theme = theme;
  });
  followLink(openLink);
  if (!isExported) followReload(() => void reload());
  const root = document.createElement("div");
  document.body.append(root);
  renderInto(<App />, root);
  void loadCaptures();
}

// In an exported page nothing else calls `render`.
if (isExported) render();
