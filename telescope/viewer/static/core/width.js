// The width of an element, followed.

import { useLayoutEffect, useState } from "../vendor/preact.js";

export function useWidth(ref, least = 320) {
  const [width, setWidth] = useState(800);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.max(least, ref.current?.clientWidth || 800));
    const watch = new ResizeObserver(measure);
    watch.observe(ref.current);
    measure();
    return () => watch.disconnect();
  }, []);
  return width;
}
