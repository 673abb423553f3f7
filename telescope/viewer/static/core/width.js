// Where an element is: its width, and whether it is in sight. Both are followed.

import { useEffect, useLayoutEffect, useState } from "../vendor/preact.js";

const NEAR = "100px"; // outside the window

// `least`: where the element is narrower.
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

export function useInSight(ref) {
  const [isSeen, setIsSeen] = useState(true);
  useEffect(() => {
    const note = (entries) => setIsSeen(entries.at(-1).isIntersecting);
    const watch = new IntersectionObserver(note, { rootMargin: NEAR });
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return isSeen;
}
